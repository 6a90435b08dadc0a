"""Runs as a picture: latencies by share of requests, and throughput by concurrency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paxkv.bench.figures import COLORS, require_matplotlib, write_picture
from paxkv.output_file import OutputFile

STYLES = ("-", "--", ":", "-.")
NAMES = {"ttft": "time to first token", "tpot": "time per output token",
         "itl": "inter-token latency", "e2el": "end-to-end latency"}  # fmt: skip


def draw(reports: Sequence[dict[str, Any]], file: OutputFile) -> None:
    """Write a picture of `reports`; the suffix of `file` says which format."""
    figure = require_matplotlib().Figure(figsize=(11, 7 if len(reports) == 1 else 10))
    rows = 2 if len(reports) == 1 else 3
    for place, name in enumerate(NAMES, start=1):
        axes = figure.add_subplot(rows, 2, place)
        for number, report in enumerate(reports):
            _shares(axes, report["samples_ms"][name], _label(report), number)
        axes.set_xlabel(f"{NAMES[name]}, ms")
        axes.set_ylabel("share of them, %")
        axes.set_ylim(0, 100)
        axes.grid(alpha=0.3)
        if len(reports) > 1:
            axes.legend()
    if len(reports) > 1:
        _by_concurrency(
            figure.add_subplot(rows, 2, 5), reports, "output_throughput", "output tok/s"
        )
        _by_concurrency(
            figure.add_subplot(rows, 2, 6), reports, "p99_e2el_ms", "P99 end to end, ms"
        )
    figure.suptitle(f"{reports[0]['model_id']}, {reports[0]['num_prompts']} requests")
    figure.tight_layout()
    write_picture(file, figure)


def _label(report: dict[str, Any]) -> str:
    return f"concurrency {report['max_concurrency'] or 'unlimited'}"


def _shares(axes: Any, values: Sequence[float], label: str, number: int) -> None:
    ordered = np.sort(np.array(values))
    shares = 100 * np.arange(1, len(ordered) + 1) / max(1, len(ordered))
    axes.step(
        ordered,
        shares,
        where="post",
        label=label,
        color=COLORS[number % len(COLORS)],
        linestyle=STYLES[number % len(STYLES)],
    )


def _by_concurrency(axes: Any, reports: Sequence[dict[str, Any]], key: str, label: str) -> None:
    labels = [str(report["max_concurrency"] or "∞") for report in reports]
    axes.plot(labels, [report[key] for report in reports], marker="o", color=COLORS[0])
    axes.set_xlabel("concurrency")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
