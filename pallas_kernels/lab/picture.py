"""The roofline as a picture: FLOP/s over FLOPs per byte, what chips allow and where calls stand.

Needs matplotlib, which nothing else here does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pallas_kernels.lab.bench import Entry, Step
from pallas_kernels.roofline import CHIPS, Chip

_INTENSITIES = np.logspace(-1, 4, 200)
_DECODE = Step(batch=64, context=8192)
# Steps of 32 heads over 8 key heads of 128, in bfloat16.
STEPS = {
    "decode 1 × 1024": replace(_DECODE, batch=1, context=1024),
    "decode 1 × 8192": replace(_DECODE, batch=1),
    "decode 64 × 8192": _DECODE,
    "prefill 2048": Step(batch=1, context=2048, new=2048),
    "prefill 8192": Step(batch=1, context=8192, new=8192),
    "128 behind 8192": Step(batch=1, context=8320, new=128),
}


@dataclass(frozen=True)
class Point:
    """A call. intensity: its FLOPs per byte that it must move. rate: FLOP/s."""

    name: str
    intensity: float
    rate: float


def floors(chip: Chip, steps: dict[str, Step] | None = None) -> list[Point]:
    """Where steps stand at best, on paper."""
    return [
        Point(name, step.flops / step.bytes, step.flops / step.floor(chip))
        for name, step in (steps or STEPS).items()
    ]


def timed(step: Step, entries: Iterable[Entry]) -> list[Point]:
    """Where the implementations of a step stand that were timed."""
    return [
        Point(entry.name, step.flops / step.bytes, step.flops / entry.timing.seconds)
        for entry in entries
        if entry.timing is not None
    ]


def draw(path: Path, chip: Chip, at_best: list[Point], measured: list[Point] | None = None) -> None:
    """Write the picture; the file's suffix is its format.

    Raises:
        ValueError: matplotlib is not there, or does not know the format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("--plot needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot()
    for held in CHIPS.values():
        chosen = held == chip
        axes.loglog(
            _INTENSITIES,
            np.minimum(held.peak, held.bandwidth * _INTENSITIES),
            color="black" if chosen else "0.75",
            linewidth=1.8 if chosen else 0.9,
        )
    for peak in {held.peak for held in CHIPS.values()}:
        names = ", ".join(held.name for held in CHIPS.values() if held.peak == peak)
        axes.annotate(
            names,
            (_INTENSITIES[-1], peak),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            color="black" if chip.peak == peak else "0.5",
        )
    _points(axes, at_best, f"floor on the {chip.name}, on paper", marker="o", hollow=True)
    _points(axes, measured or [], "measured here", marker="s", hollow=False)
    axes.set_xlabel("FLOPs per byte that must move")
    axes.set_ylabel("FLOP/s")
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(path)


def _points(axes: Any, points: list[Point], label: str, *, marker: str, hollow: bool) -> None:
    if not points:
        return
    colour = "#0072B2" if hollow else "#D55E00"
    axes.plot(
        [point.intensity for point in points],
        [point.rate for point in points],
        linestyle="none",
        marker=marker,
        color=colour,
        markerfacecolor="none" if hollow else colour,
        label=label,
    )
    for point in points:
        # Under the roof; floors to the right and measured ones to the left, which may be beside.
        axes.annotate(
            point.name,
            (point.intensity, point.rate),
            xytext=(6, -11) if hollow else (-6, -11),
            textcoords="offset points",
            ha="left" if hollow else "right",
            fontsize=8,
            color=colour,
        )
