"""Measurements of several engines as one report: for scripts as JSON, for people as a table."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from paxkv.bench.measurement import Measurement
from paxkv.bench.workload import Workload


def build_report(
    job: dict[str, Any],
    workload: Workload,
    measurements: list[Measurement],
    machine: dict[str, Any],
) -> dict[str, Any]:
    """All figures, and how the first engine compares with each of the others.

    Returns:
        `ratios`: the first engine's output tokens/s over each other's, by engine name (above 1:
        faster). `time_per_token_ratios`: its single-stream seconds per token over theirs (below
        1: faster). `identical_outputs`: greedy sequences with the same token ids, `[same, all]`.
        `engines`: each engine's own figures. `job`, `workload`, `machine`: what was run where.
    """
    ours, *others = measurements
    return {
        "job": job,
        "machine": machine,
        "workload": {
            "name": workload.name,
            "num_requests": len(workload.requests),
            "num_sequences": workload.num_sequences,
            "num_prompt_tokens": workload.num_prompt_tokens,
        },
        "engines": {each.engine: each.summary() for each in measurements},
        "ratios": {
            other.engine: ours.output_tokens_per_second / other.output_tokens_per_second
            for other in others
        },
        "time_per_token_ratios": {
            other.engine: _time_per_token(ours) / _time_per_token(other)
            for other in others
            if _time_per_token(ours) and _time_per_token(other)
        },
        "identical_outputs": {
            other.engine: _identical_greedy(workload, ours, other) for other in others
        },
    }


def _time_per_token(measurement: Measurement) -> float:
    """Seconds, or 0 where it was not measured."""
    stream = measurement.single_stream
    return (stream and stream.time_per_output_token) or 0.0


def _identical_greedy(workload: Workload, ours: Measurement, other: Measurement) -> list[int]:
    pairs = [
        (mine, theirs)
        for request, mine, theirs in zip(workload.requests, ours.outputs, other.outputs)
        if request.temperature == 0
    ]
    return [sum(mine == theirs for mine, theirs in pairs), len(pairs)]


def print_report(report: dict[str, Any], console: Console | None = None) -> None:
    """Print the table, one column an engine, and the ratios under it."""
    console = console or Console()
    workload = report["workload"]
    console.print(
        f"{workload['name']}: {workload['num_requests']} requests, "
        f"{workload['num_sequences']} sequences, {workload['num_prompt_tokens']} prompt tokens"
    )
    table = Table()
    table.add_column("")
    engines = report["engines"]
    for engine in engines:
        table.add_column(engine, justify="right")
    for label, cell in _ROWS:
        table.add_row(label, *(cell(figures) for figures in engines.values()))
    console.print(table)
    for engine, ratio in report["ratios"].items():
        same, greedy = report["identical_outputs"][engine]
        line = f"throughput over {engine}: {ratio:.2f}×"
        per_token = report["time_per_token_ratios"].get(engine)
        if per_token is not None:
            line += f", single-stream time per token: {per_token:.2f}×"
        if greedy:
            line += f", same greedy outputs: {same} of {greedy}"
        console.print(line, highlight=False)


def _number(figures: dict[str, Any], name: str, scale: float = 1.0, digits: int = 1) -> str:
    value = figures.get(name)
    return "–" if value is None else f"{value * scale:.{digits}f}"


def _stream(figures: dict[str, Any], name: str) -> str:
    return _number(figures["single_stream"] or {}, name, 1e3)


def _elapsed(figures: dict[str, Any]) -> str:
    runs = figures["elapsed"]
    low, high = min(runs), max(runs)
    return f"{low:.1f}" if len(runs) == 1 else f"{low:.1f}–{high:.1f} ({len(runs)} runs)"


_ROWS = (
    ("requests/s", lambda f: _number(f, "requests_per_second", digits=2)),
    ("output tokens/s", lambda f: _number(f, "output_tokens_per_second")),
    ("total tokens/s", lambda f: _number(f, "total_tokens_per_second")),
    ("output tokens", lambda f: str(f["num_output_tokens"])),
    ("seconds per run", _elapsed),
    ("peak RSS, GiB", lambda f: _number(f, "peak_rss_bytes", 2**-30, 2)),
    ("start-up, s", lambda f: _number(f, "startup_seconds")),
    ("of it compiling, s", lambda f: _number(f, "compile_seconds")),
    ("host time per step, ms", lambda f: _number(f, "host_seconds_per_step", 1e3, 2)),
    ("single stream: first token, ms", lambda f: _stream(f, "time_to_first_token")),
    ("single stream: per token, ms", lambda f: _stream(f, "time_per_output_token")),
)
