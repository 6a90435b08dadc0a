"""The figures of a run, by vLLM's definitions and under its names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paxkv.bench.serve.outcome import Outcome


def parse_goodput(pairs: Sequence[str]) -> dict[str, float]:
    """Milliseconds by metric, from texts like `ttft:200`. Raises ValueError."""
    found = {}
    for pair in pairs:
        name, _, value = pair.partition(":")
        try:
            limit = float(value)
        except ValueError:
            limit = 0.0
        if name not in ("ttft", "tpot", "e2el") or not limit > 0:
            raise ValueError(
                f"goodput is {pair!r}; it must be ttft, tpot or e2el, a colon and milliseconds"
            )
        found[name] = limit
    return found


def summarize(
    outcomes: Sequence[Outcome],
    duration: float,
    percentiles: Sequence[float] = (50, 95, 99),
    goodput: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """All figures of a run that took `duration` seconds; latencies in milliseconds.

    Throughput counts successful requests alone. goodput: milliseconds a good request stays
    within, by metric.
    """
    good = [outcome for outcome in outcomes if outcome.succeeded]
    output = sum(outcome.output_tokens for outcome in good)
    prompt = sum(outcome.prompt_tokens for outcome in good)
    figures: dict[str, Any] = {
        "duration": duration,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": len(good) / duration,
        "request_goodput": _count_within(good, goodput) / duration if goodput else None,
        "output_throughput": output / duration,
        "total_token_throughput": (prompt + output) / duration,
        "max_output_tokens_per_s": _busiest_second(good),
        "max_concurrent_requests": _most_at_once(outcomes),
    }
    for name, values in samples(good).items():
        figures |= _distribution(name, values, percentiles)
    return figures


def samples(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """Milliseconds of every metric, all requests together."""
    return {
        "ttft": [1000 * outcome.ttft for outcome in outcomes],
        "tpot": [1000 * o.tpot for o in outcomes if o.tpot is not None],
        "itl": [1000 * gap for outcome in outcomes for gap in outcome.itls],
        "e2el": [1000 * outcome.latency for outcome in outcomes],
    }


def _distribution(
    name: str, values: Sequence[float], percentiles: Sequence[float]
) -> dict[str, float]:
    array = np.array(values) if values else np.zeros(1)
    found = {
        f"mean_{name}_ms": float(np.mean(array)),
        f"median_{name}_ms": float(np.median(array)),
        f"std_{name}_ms": float(np.std(array)),
    }
    for percentile in percentiles:
        found[f"p{percentile:g}_{name}_ms"] = float(np.percentile(array, percentile))
    return found


def _count_within(outcomes: Sequence[Outcome], goodput: Mapping[str, float]) -> int:
    """Requests within every limit; one without a second token has no time per token to miss."""
    count = 0
    for outcome in outcomes:
        reached = {"ttft": outcome.ttft, "tpot": outcome.tpot or 0.0, "e2el": outcome.latency}
        count += all(1000 * reached[name] <= limit for name, limit in goodput.items())
    return count


def _busiest_second(outcomes: Sequence[Outcome]) -> float:
    """Tokens of the busiest whole second; a piece of an answer has its share of the tokens."""
    times = [time for outcome in outcomes for time in outcome.chunk_times]
    if not times:
        return 0.0
    weights = [
        outcome.output_tokens / len(outcome.chunk_times)
        for outcome in outcomes
        for _ in outcome.chunk_times
    ]
    return float(np.bincount(np.array(times, np.int64), weights=weights).max())


def _most_at_once(outcomes: Sequence[Outcome]) -> int:
    ends = [outcome for outcome in outcomes if outcome.end is not None]
    events = [(o.start, 1) for o in ends] + [(o.end or 0.0, -1) for o in ends]
    running = most = 0
    for _, change in sorted(events):
        running += change
        most = max(most, running)
    return most
