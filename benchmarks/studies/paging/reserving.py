"""Memory that reserves a contiguous run for each request, behind the scheduler's interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from benchmarks.studies.paging.slot_pools import BuddyPool, FirstFitPool, SlotPool
from benchmarks.studies.paging.trace import Lengths
from paxkv.memory import Allocation

Reservation = Callable[[Lengths, int], int]
"""`(lengths, max_model_len) -> slots` set aside when the request starts."""


def maximum(lengths: Lengths, max_model_len: int) -> int:
    """What a system must reserve that knows nothing of the answer."""
    return max_model_len


def true_length(lengths: Lengths, max_model_len: int) -> int:
    """What an oracle would reserve."""
    return lengths.total


def next_power_of_two(lengths: Lengths, max_model_len: int) -> int:
    """The prompt, and the answer's length up to the next power of two (the paper's Orca (Pow2))."""
    return min(max_model_len, lengths.prompt + (1 << (lengths.output - 1).bit_length()))


class ReservingMemory:
    """What `Scheduler` asks of a `BlockManager`, with all slots of a sequence taken at allocation.

    A request's lengths are looked up by its cache salt, the number of the request.
    """

    def __init__(
        self,
        pool: SlotPool,
        reservation: Reservation,
        requests: Sequence[Lengths],
        max_model_len: int,
        max_rows: int,
    ) -> None:
        self._pool = pool
        self._sizes = [reservation(lengths, max_model_len) for lengths in requests]
        self._spare = list(range(max_rows))
        heapify(self._spare)
        self._runs: dict[int, tuple[int, int]] = {}
        self.num_tokens = np.zeros(max_rows, np.int32)
        self.num_free_blocks = 0

    @property
    def num_slots(self) -> int:
        return self._pool.num_slots

    def reserved(self, row: int) -> int:
        """Slots set aside for `row`, rounding of the pool included."""
        return self._pool.rounded(self._runs[row][1])

    def chain(self, *, salt: int) -> int:
        return salt

    def allocate(
        self, token_ids: Sequence[int], *, chain: int, first_chunk: int, **_: object
    ) -> Allocation | None:
        """Headroom is of no account here: everything a request will need is set aside."""
        size = self._sizes[chain]
        start = self._pool.allocate(size) if self._spare else None
        if start is None:
            return None
        row = heappop(self._spare)
        self._runs[row] = (start, size)
        granted = min(len(token_ids), first_chunk)
        self.num_tokens[row] = granted
        return Allocation(row, 0, granted)

    def blocks_needed(self, rows: Sequence[int]) -> int:
        return 0

    def room(self, row: int) -> int:
        return self._runs[row][1] - int(self.num_tokens[row])

    def append(self, row: int, num_tokens: int = 1) -> None:
        self.append_batch([row], num_tokens)

    def append_batch(self, rows: Sequence[int], num_tokens: int = 1) -> None:
        self.num_tokens[rows] += np.int32(num_tokens)

    def cache_blocks(self, row: int, token_ids: Sequence[int], num_tokens: int) -> int:
        return 0

    def free(self, row: int) -> None:
        self._pool.release(self._runs.pop(row)[0])
        self.num_tokens[row] = 0
        heappush(self._spare, row)


RESERVATIONS: dict[str, tuple[type[FirstFitPool] | type[BuddyPool], Reservation]] = {
    "contiguous, maximum": (FirstFitPool, maximum),
    "buddy, true length": (BuddyPool, true_length),
    "buddy, next power of two": (BuddyPool, next_power_of_two),
}
