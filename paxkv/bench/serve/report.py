"""A run's figures as vLLM prints them, and several runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from paxkv.bench.figures import FigureTable

WIDTH = 50
TITLES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


def report_text(report: dict[str, Any], percentiles: Sequence[float]) -> str:
    """The report of one run, line names and widths as in `vllm bench serve`."""
    return "\n".join(_lines(report, percentiles))


def _lines(report: dict[str, Any], percentiles: Sequence[float]) -> Iterator[str]:
    yield f"{' Serving Benchmark Result ':=^{WIDTH}}"
    yield _line("Successful requests:", report["completed"])
    yield _line("Failed requests:", report["failed"])
    if report["max_concurrency"] is not None:
        yield _line("Maximum request concurrency:", report["max_concurrency"])
    rate = report["arrivals"]["request_rate"]
    if rate != "inf":
        yield _line("Request rate configured (RPS):", rate)
    yield _line("Benchmark duration (s):", report["duration"])
    yield _line("Total input tokens:", report["total_input_tokens"])
    yield _line("Total generated tokens:", report["total_output_tokens"])
    yield _line("Request throughput (req/s):", report["request_throughput"])
    if report["request_goodput"] is not None:
        yield _line("Request goodput (req/s):", report["request_goodput"])
    yield _line("Output token throughput (tok/s):", report["output_throughput"])
    yield _line("Peak output token throughput (tok/s):", report["max_output_tokens_per_s"])
    yield _line("Peak concurrent requests:", float(report["max_concurrent_requests"]))
    yield _line("Total token throughput (tok/s):", report["total_token_throughput"])
    if report["peak_memory_bytes"]:
        yield _line("Peak server memory (GiB):", report["peak_memory_bytes"] / 2**30)
    for name, title in TITLES.items():
        yield f"{title:-^{WIDTH}}"
        yield _line(f"Mean {name.upper()} (ms):", report[f"mean_{name}_ms"])
        yield _line(f"Median {name.upper()} (ms):", report[f"median_{name}_ms"])
        for percentile in percentiles:
            label = f"P{percentile:g} {name.upper()} (ms):"
            yield _line(label, report[f"p{percentile:g}_{name}_ms"])
    yield "=" * WIDTH


def _line(label: str, value: float) -> str:
    return f"{label:<40} {value:<10.2f}" if isinstance(value, float) else f"{label:<40} {value:<10}"


def concurrency_table(
    reports: Sequence[dict[str, Any]], percentiles: Sequence[float]
) -> FigureTable:
    """One line for each concurrency."""
    last = percentiles[-1]
    columns = ("concurrency", "req/s", "goodput", "output tok/s",
               *(f"P{last:g} {name.upper()}, ms" for name in TITLES), "failed")  # fmt: skip
    rows = []
    for report in reports:
        goodput = report["request_goodput"]
        rows.append(
            (
                str(report["max_concurrency"] or "–"),
                f"{report['request_throughput']:.2f}",
                "–" if goodput is None else f"{goodput:.2f}",
                f"{report['output_throughput']:.1f}",
                *(f"{report[f'p{last:g}_{name}_ms']:.1f}" for name in TITLES),
                str(report["failed"]),
            )
        )
    return FigureTable("By concurrency", columns, tuple(rows))


def first_errors(report: dict[str, Any], most: int = 3) -> list[str]:
    """Different errors of a run, the first few."""
    return list(dict.fromkeys(error for error in report["errors"] if error))[:most]
