"""The scheduler's output: what a step computes and which sequences it samples for."""

from __future__ import annotations

from dataclasses import dataclass, field

from paxkv.engine.sequence import Sequence


@dataclass(slots=True)
class ScheduledSequence:
    """`sequence` computes `count` tokens from position `start` on."""

    sequence: Sequence
    start: int
    count: int


@dataclass(slots=True)
class SampleSlot:
    """A token to sample for `sequence` from the last hidden state of `scheduled[advance]`."""

    sequence: Sequence
    advance: int


@dataclass(slots=True)
class SchedulerOutput:
    """One step: decoding sequences first, then chunks of prompts.

    time: when it was made, on the scheduler's clock.
    num_prompts: scheduled sequences that are chunks of prompts, or are recomputed.
    forked: (parent, child) pairs forked in this step.
    started: sequences that got a row in this step.
    """

    time: float = 0.0
    num_prompts: int = 0
    scheduled: list[ScheduledSequence] = field(default_factory=list)
    sample_slots: list[SampleSlot] = field(default_factory=list)
    forked: list[tuple[Sequence, Sequence]] = field(default_factory=list)
    started: list[Sequence] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(advance.count for advance in self.scheduled)
