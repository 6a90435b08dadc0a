"""Running and waiting sequences, and how they move between the two."""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paxkv.engine.beam.request import Regrouping
from paxkv.engine.config import PreemptionMode
from paxkv.engine.scheduler.policy import rank
from paxkv.engine.sequence import Sequence
from paxkv.memory import Allocation, BlockManager, HashChain

if TYPE_CHECKING:
    from paxkv.engine.runner.runner import Runner


class Queues:
    """Running and waiting sequences, each list by rank; every running one has a row.

    A group (`Sequence.group`) is preempted as a whole: all of it goes to host memory, or none, and
    it comes back sharing the pages it shares now.
    """

    def __init__(self, memory: BlockManager, preemption: Preemption) -> None:
        self._memory = memory
        self.preemption = preemption
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []

    @property
    def swapped(self) -> list[Sequence]:
        """Waiting sequences whose pages are in host memory."""
        return [sequence for sequence in self.waiting if sequence.swapped is not None]

    @property
    def coming_back(self) -> list[Sequence]:
        """Members without rows of groups that have begun to resume, in their order.

        They start before all others. A group advances only as a whole, so a sequence that started
        in between might wait for it while the group waits for that sequence's slots.
        """
        return [
            member
            for sequence in self.running
            if sequence.request.is_beam_group and sequence is sequence.request.sequences[0]
            for member in sequence.request.sequences
            if member.row is None
        ]

    def wait(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=rank)

    def run(self, sequence: Sequence, row: int) -> None:
        sequence.row = row
        insort(self.running, sequence, key=rank)

    def finish(self, sequence: Sequence) -> None:
        """Free everything an ended sequence holds."""
        if sequence.row is not None:
            self._memory.free(sequence.row)
            sequence.row = None
            _leave(self.running, sequence)
        else:
            if sequence.swapped is not None:
                self._memory.swap.discard(sequence.swapped)
                sequence.swapped = None
            _leave(self.waiting, sequence)

    # Preemption and resumption

    def preempt(self, group: list[Sequence], may_swap: bool) -> bool:
        """Return running sequences to their places in line; True if they were swapped out."""
        # Sampling needs a hidden state, so at least one token must remain to be computed.
        may_swap = may_swap and all(sequence.num_remaining for sequence in group)
        away = None
        if may_swap and self.preemption.swaps(self._memory, rows_of(group)):
            away = self._memory.swap.swap_out_rows(rows_of(group))
            for sequence, swapped in zip(group, away or ()):
                sequence.swapped = swapped
                sequence.row = None
        self.stop(group)
        for sequence in group:
            if sequence.swapped is None:
                sequence.num_computed = 0
            sequence.num_resumed += 1
            sequence.sampled = False
            self.wait(sequence)
        return away is not None

    def allocate(self, sequence: Sequence, first_chunk: int, headroom: int) -> Allocation | None:
        """Allocate a row, and pages for the known tokens and `first_chunk` more; None for no room.

        headroom: pages that must stay free; beams after the first of a group need none.
        """
        if sequence.swapped is not None:
            count = min(sequence.num_remaining, first_chunk)
            return self._memory.swap.swap_in(sequence.swapped, count, headroom=headroom)
        if sequence.shared_prefix is not None:
            return self._join(sequence, first_chunk)
        request = sequence.request
        return self._memory.allocate(
            sequence.token_ids,
            chain=self._chain_of(sequence),
            first_chunk=first_chunk,
            headroom=headroom,
            use_cache=request.reads_cache,
            cache_blocks=request.leaves_cache,
            resumed=sequence.num_resumed > 0,
        )

    def pages_wanted(self, sequence: Sequence) -> int:
        """Free pages needed to compute all its tokens; an upper bound if it was preempted."""
        if sequence.swapped is not None or sequence.shared_prefix is not None:
            return -(-len(sequence.token_ids) // self._memory.block_size)
        return self._memory.blocks_to_admit(
            sequence.token_ids,
            chain=self._chain_of(sequence),
            use_cache=sequence.request.reads_cache,
        )

    def _chain_of(self, sequence: Sequence) -> HashChain:
        if sequence.chain is None:
            sequence.chain = self._memory.chain(salt=sequence.request.cache_salt)
        return sequence.chain

    def _join(self, sequence: Sequence, most: int) -> Allocation | None:
        """Fork a row from the one it shares blocks with; grant slots to at most `most` tokens."""
        assert sequence.shared_prefix is not None
        beside, num_blocks = sequence.shared_prefix
        cached = num_blocks * self._memory.block_size
        new = min(len(sequence.token_ids) - cached, most)
        assert beside.row is not None
        if self._memory.num_tokens[beside.row] < cached:
            return None  # The other row has no slots for them yet: it is resumed in chunks.
        if -(-new // self._memory.block_size) > self._memory.num_free_blocks:
            return None
        row = self._memory.fork_blocks(beside.row, num_blocks)
        if row is None:
            return None
        self._memory.append(row, new)
        return Allocation(row, cached, new)

    def drop_swapped(self) -> None:
        """Forget host memory: sequences in it are recomputed."""
        for sequence in self.swapped:
            sequence.swapped = None
            sequence.num_computed = 0
        self._memory.swap.drop_all()

    # Many rows at once

    def fork(self, parent: Sequence, count: int) -> list[Sequence]:
        """Fork `count` children of a running sequence, sharing its pages."""
        assert parent.row is not None
        rows = self._memory.fork(parent.row, count)
        assert rows is not None
        first = len(parent.request.sequences)
        children = [parent.child(first + index) for index in range(count)]
        for child, row in zip(children, rows.tolist()):
            self.run(child, row)
        return children

    def regroup(self, regrouping: Regrouping) -> None:
        """Carry out a step of beam searches: one fork of rows, and one free."""
        rows = self._memory.spare_rows(len(regrouping.born))
        assert rows is not None
        for sequence, row in zip(regrouping.born, rows.tolist()):
            self.run(sequence, row)
        if regrouping.forks:
            parents, children = zip(*regrouping.forks)
            self._memory.fork_rows(rows_of(parents), rows_of(children))
        self.stop(regrouping.ended)

    def stop(self, sequences: list[Sequence]) -> None:
        """Free the rows of running sequences."""
        self._memory.free_rows(rows_of(sequences))
        for sequence in sequences:
            _leave(self.running, sequence)
            sequence.row = None


def rows_of(sequences: list[Sequence] | tuple[Sequence, ...]) -> list[int]:
    return [s.row for s in sequences if s.row is not None]


def set_shared_prefixes(group: list[Sequence], block_size: int) -> None:
    """Note which leading blocks each sequence shares, and with which one before it.

    Sequences with a common history share the pages of its full blocks. When they resume, they share
    them again, whatever the prefix cache has kept.
    """
    known = np.array([sequence.token_ids for sequence in group])
    for index, sequence in enumerate(group):
        differs = known[:index] != known[index]
        common = np.argmax(differs, axis=1) // block_size
        sequence.shared_prefix = None
        if common.max(initial=0):
            sequence.shared_prefix = (group[int(common.argmax())], int(common.max()))


def blocks_in_all(group: list[Sequence], block_size: int) -> int:
    """Pages of the whole group once its known tokens are computed; shared pages count once."""
    shared = sum(
        shared_prefix[1]
        for sequence in group
        if (shared_prefix := sequence.shared_prefix) is not None
    )
    each = -(-len(group[0].token_ids) // block_size)
    return each * len(group) - shared


def _leave(queue: list[Sequence], sequence: Sequence) -> None:
    index = bisect_left(queue, rank(sequence), key=rank)
    if index < len(queue) and queue[index] is sequence:
        del queue[index]


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Preemption:
    """The choice between swapping and recomputing.

    With "auto" sequences are swapped if moving their pages out and in takes less time than
    computing their tokens again. Pages that others keep on the device count for neither. Both
    speeds are measured once, when the engine starts: a chunk of pages moved there and back, and
    the smallest step of prompt tokens. That step has no context to attend to, so the measurement
    somewhat favors recomputing for long sequences.

    mode: see `EngineConfig`. seconds_per_page: one way. seconds_per_token: in a prompt.
    """

    mode: PreemptionMode = "recompute"
    seconds_per_page: float = 0.0
    seconds_per_token: float = 0.0

    @classmethod
    def measured(cls, mode: PreemptionMode, runner: Runner) -> Preemption:
        if mode != "auto":
            return cls(mode)
        found = cls(mode, runner.seconds_per_page(), runner.seconds_per_token())
        logger.info(
            "preemption_mode=auto: %.3g s to carry a page, %.3g s to compute a token",
            found.seconds_per_page,
            found.seconds_per_token,
        )
        return found

    def swaps(self, memory: BlockManager, rows: list[int]) -> bool:
        """Whether the sequences in `rows` should be swapped together, if host memory has room."""
        if self.mode != "auto":
            return self.mode == "swap"
        pages, tokens = memory.swap.cost(rows)
        return pages * self.seconds_per_page < tokens * self.seconds_per_token


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
