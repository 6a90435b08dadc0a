"""Figures of `bench serve`, against numpy and against arithmetic by hand."""

from __future__ import annotations

import numpy as np
import pytest

from paxkv.bench.serve.outcome import Outcome
from paxkv.bench.serve.statistics import parse_goodput, summarize


def made_up(count: int) -> list[Outcome]:
    random = np.random.default_rng(5)
    outcomes = []
    for _ in range(count):
        start = random.uniform(0, 5)
        times = start + np.cumsum(random.uniform(0.01, 0.2, random.integers(1, 30)))
        outcomes.append(
            Outcome(
                start, times[0], times[-1], times.tolist(), int(random.integers(5, 99)), len(times)
            )
        )
    return outcomes


def test_percentiles_are_numpys() -> None:
    outcomes = made_up(60)
    failed = Outcome(0.5, end=9.0, error="status 503")
    figures = summarize([*outcomes, failed], 12.5, percentiles=(50, 90, 99.9))
    expected = {
        "ttft": [o.chunk_times[0] - o.start for o in outcomes],
        "tpot": [
            (o.chunk_times[-1] - o.chunk_times[0]) / (len(o.chunk_times) - 1)
            for o in outcomes
            if len(o.chunk_times) > 1
        ],
        "itl": np.concatenate([np.diff(o.chunk_times) for o in outcomes]),
        "e2el": [o.chunk_times[-1] - o.start for o in outcomes],
    }
    for name, values in expected.items():
        values = 1000 * np.array(values, np.float64)
        assert figures[f"mean_{name}_ms"] == pytest.approx(values.mean())
        assert figures[f"median_{name}_ms"] == pytest.approx(np.median(values))
        assert figures[f"std_{name}_ms"] == pytest.approx(values.std())
        assert figures[f"p50_{name}_ms"] == pytest.approx(np.median(values))
        assert figures[f"p90_{name}_ms"] == pytest.approx(np.percentile(values, 90))
        assert figures[f"p99.9_{name}_ms"] == pytest.approx(np.percentile(values, 99.9))
    assert (figures["completed"], figures["failed"]) == (60, 1)
    tokens = sum(len(o.chunk_times) for o in outcomes)
    prompt = sum(o.prompt_tokens for o in outcomes)
    assert figures["total_output_tokens"] == tokens
    assert figures["output_throughput"] == pytest.approx(tokens / 12.5)
    assert figures["total_token_throughput"] == pytest.approx((tokens + prompt) / 12.5)
    assert figures["request_throughput"] == pytest.approx(60 / 12.5)


def test_a_small_run_by_hand() -> None:
    outcomes = [
        Outcome(0.0, 0.2, 1.2, [0.2, 0.7, 1.2], 10, 3),
        Outcome(0.5, 0.6, 2.5, [0.6, 2.5], 20, 2),
        Outcome(1.3, 1.4, 1.4, [1.4], 30, 1),
    ]
    figures = summarize(outcomes, 2.5)
    assert figures["mean_ttft_ms"] == pytest.approx((200 + 100 + 100) / 3)
    assert figures["mean_tpot_ms"] == pytest.approx((500 + 1900) / 2)
    assert figures["mean_itl_ms"] == pytest.approx((500 + 500 + 1900) / 3)
    assert figures["mean_e2el_ms"] == pytest.approx((1200 + 2000 + 100) / 3)
    assert figures["max_concurrent_requests"] == 2
    assert figures["max_output_tokens_per_s"] == 3
    assert figures["request_goodput"] is None


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        (["ttft:150"], 2),
        (["ttft:150", "e2el:500"], 1),
        (["tpot:600"], 2),
        (["tpot:600", "ttft:100.5"], 1),
        (["e2el:1"], 0),
        (["ttft:200.1", "tpot:1900.1", "e2el:2000.1"], 3),
    ],
)
def test_goodput_counts_those_within_every_limit(limits: list[str], good: int) -> None:
    outcomes = [
        Outcome(0.0, 0.2, 1.2, [0.2, 0.7, 1.2], 10, 3),
        Outcome(0.5, 0.6, 2.5, [0.6, 2.5], 20, 2),
        Outcome(1.3, 1.4, 1.4, [1.4], 30, 1),
        Outcome(1.3, 1.31, 1.32, [1.31], 30, 1, error="late"),
    ]
    figures = summarize(outcomes, 2.0, goodput=parse_goodput(limits))
    assert figures["request_goodput"] == pytest.approx(good / 2.0)


@pytest.mark.parametrize("pair", ["ttft", "ttft:x", "itl:3", "ttft:0", "tpot:-1", ":5"])
def test_a_wrong_goodput_is_named(pair: str) -> None:
    with pytest.raises(ValueError, match="goodput"):
        parse_goodput([pair])


def test_several_answers_share_the_time_per_token() -> None:
    outcome = Outcome(0.0, 1.0, 3.0, [1.0, 2.0, 3.0], 5, output_tokens=15, num_sequences=3)
    assert outcome.tpot == pytest.approx(2.0 / 4)


def test_nothing_succeeded() -> None:
    figures = summarize([Outcome(0.0, end=1.0, error="x")], 1.0)
    assert figures["completed"] == 0
    assert figures["p99_ttft_ms"] == figures["output_throughput"] == 0
