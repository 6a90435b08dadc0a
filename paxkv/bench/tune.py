"""The options of `paxkv serve` that give the most tokens within a latency target, by trying."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from paxkv.bench.figures import FigureTable


@dataclass(frozen=True)
class Candidate:
    """One setting of the three options."""

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int

    @property
    def flags(self) -> list[str]:
        return [
            "--max-num-seqs", str(self.max_num_seqs),
            "--max-num-batched-tokens", str(self.max_num_batched_tokens),
            "--block-size", str(self.block_size),
        ]  # fmt: skip


def candidates(
    max_num_seqs: Sequence[int], max_num_batched_tokens: Sequence[int], block_size: Sequence[int]
) -> list[Candidate]:
    """Every combination the engine takes: a step has room for a token of each sequence.

    Raises ValueError if none is left.
    """
    for name, values in (
        ("max_num_seqs", max_num_seqs),
        ("max_num_batched_tokens", max_num_batched_tokens),
        ("block_size", block_size),
    ):
        if not values or min(values) < 1:
            raise ValueError(f"{name} is {list(values)}, must be numbers of at least 1")
    found = [
        Candidate(*numbers)
        for numbers in product(max_num_seqs, max_num_batched_tokens, block_size)
        if numbers[1] >= numbers[0]
    ]
    if not found:
        raise ValueError(
            f"max_num_batched_tokens is {list(max_num_batched_tokens)}; one must be at least the "
            f"smallest max_num_seqs, {min(max_num_seqs)}"
        )
    return found


@dataclass(frozen=True)
class Trial:
    """A candidate and its report, or why there is none."""

    candidate: Candidate
    report: dict[str, Any] | None
    error: str = ""


@dataclass(frozen=True)
class Target:
    """Latencies in milliseconds that a percentile of the requests stays within, by metric."""

    limits: dict[str, float]
    percentile: float

    def key(self, metric: str) -> str:
        return f"p{self.percentile:g}_{metric}_ms"

    def is_met(self, report: dict[str, Any]) -> bool:
        """Whether nothing failed and every limit holds."""
        return not report["failed"] and self.excess(report) <= 1

    def excess(self, report: dict[str, Any]) -> float:
        """The worst of the latencies, each as a multiple of its limit."""
        return max(report[self.key(name)] / limit for name, limit in self.limits.items())


def search(
    found: Sequence[Candidate], measure: Callable[[Candidate], dict[str, Any]]
) -> list[Trial]:
    """Try each candidate. One that cannot start is reported with its error; the rest still run."""
    trials = []
    for candidate in found:
        try:
            trials.append(Trial(candidate, measure(candidate)))
        except ValueError as error:
            trials.append(Trial(candidate, None, str(error)))
    return trials


def best(trials: Sequence[Trial], target: Target) -> Trial | None:
    """The one with the most output tokens a second of those that meet the target."""
    meeting = [trial for trial in trials if trial.report and target.is_met(trial.report)]
    return max(meeting, key=lambda trial: _throughput(trial), default=None)


def closest(trials: Sequence[Trial], target: Target) -> Trial | None:
    """The one that misses the target by the least; one with failures comes last."""
    measured = [trial for trial in trials if trial.report]
    return min(
        measured,
        key=lambda trial: (trial.report["failed"], target.excess(trial.report)),  # type: ignore
        default=None,
    )


def _throughput(trial: Trial) -> float:
    assert trial.report is not None
    return trial.report["output_throughput"]


def trial_table(trials: Sequence[Trial], target: Target) -> FigureTable:
    """One line a candidate."""
    names = list(target.limits)
    latencies = [f"P{target.percentile:g} {name.upper()}, ms" for name in names]
    columns = ("max_num_seqs", "batched tokens", "block size", "output tok/s", *latencies, "target")
    rows = []
    for trial in trials:
        setting = trial.candidate
        numbers = (setting.max_num_seqs, setting.max_num_batched_tokens, setting.block_size)
        if trial.report is None:
            figures, verdict = ["–"] * (1 + len(names)), "no start"
        else:
            report = trial.report
            figures = [f"{report['output_throughput']:.1f}"]
            figures += [f"{report[target.key(name)]:.1f}" for name in names]
            verdict = "met" if target.is_met(report) else "missed"
        rows.append((*map(str, numbers), *figures, verdict))
    return FigureTable("Tried", columns, tuple(rows))
