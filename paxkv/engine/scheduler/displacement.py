"""Preemption by priority: which running sequences make room for a waiting one."""

from __future__ import annotations

from paxkv.engine.scheduler.policy import rank
from paxkv.engine.scheduler.queues import rows_of
from paxkv.engine.sequence import Sequence
from paxkv.memory import BlockManager


def displaced_by(
    first: Sequence, slots: int, pages: int, running: list[Sequence], memory: BlockManager
) -> list[Sequence]:
    """Choose running sequences to preempt, last in rank first, one of each group.

    As few as free the `slots` and `pages` that `first` lacks (0 or less if it lacks none), and none
    at all if even all candidates together would not free enough.
    """
    if slots <= 0 and pages <= 0:
        return []
    chosen: list[Sequence] = []
    leaving: list[Sequence] = []
    free_slots = 0
    for sequence in reversed(running):
        if sequence in leaving or not _makes_way(sequence, first):
            continue
        group = [member for member in sequence.group if member.row is not None]
        chosen.append(sequence)
        leaving += group
        free_slots += len(group)
        if any(member.index == 0 for member in group):
            free_slots += sequence.request.num_pending_children
        if free_slots >= slots and memory.blocks_freed(rows_of(leaving)) >= pages:
            return chosen
    return []


def _makes_way(sequence: Sequence, first: Sequence) -> bool:
    """Whether `sequence` has lower priority, stands behind in line (aging may have moved it
    forward), and has sampled a token since it was last displaced. The last condition prevents
    thrashing."""
    lower = sequence.request.sampling_params.priority < first.request.sampling_params.priority
    progressed = len(sequence.token_ids) > sequence.displaced_at
    return lower and progressed and rank(first) < rank(sequence)
