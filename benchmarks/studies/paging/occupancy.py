"""What the slots of a pool are good for at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass

import numpy as np

from benchmarks.studies.paging.reserving import ReservingMemory
from paxkv.memory import BlockManager


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Slots by what they hold (section 3.1 of the PagedAttention paper).

    used: keys and values. reserved: set aside, the request will use them later. internal: set
    aside, the request will never use them. external: in nobody's hands and yet of no use to
    those who wait. tail: the rest of a last page. free: any running request may take them next.
    """

    used: float
    reserved: float
    internal: float
    external: float
    tail: float
    free: float

    @property
    def held(self) -> float:
        """Slots that nobody else can have now."""
        return self.used + self.reserved + self.internal + self.external + self.tail

    @property
    def waste(self) -> float:
        """Share of the slots held that holds nothing."""
        return 1 - self.used / self.held if self.held else 0.0

    @classmethod
    def mean(cls, each: list[Occupancy]) -> Occupancy:
        return cls(*np.mean([astuple(one) for one in each], axis=0).tolist())


def reserved_occupancy(memory: ReservingMemory, final: Mapping[int, int]) -> Occupancy:
    """final: tokens that each live row will have at its end."""
    taken = {row: memory.reserved(row) for row in final}
    used = sum(int(memory.num_tokens[row]) for row in final)
    needed = sum(final.values())
    everything = sum(taken.values())
    return Occupancy(
        used=used,
        reserved=needed - used,
        internal=everything - needed,
        external=memory.num_slots - everything,
        tail=0,
        free=0,
    )


def paged_occupancy(memory: BlockManager) -> Occupancy:
    """Shared pages count once; a page is as full as the longest sequence in it makes it."""
    used, held = page_slots(memory)
    return Occupancy(
        used=used,
        reserved=0,
        internal=0,
        external=0,
        tail=held - used,
        free=memory.num_blocks * memory.block_size - held,
    )


def page_slots(memory: BlockManager) -> tuple[int, int]:
    """Slots filled, and slots of all pages that are in some table."""
    size = memory.block_size
    rows = memory.live_rows
    pages, columns = memory.flat_pages(rows)
    tokens = memory.num_tokens[rows]
    filled = np.clip(np.repeat(tokens, -(-tokens // size)) - columns * size, 0, size)
    most = np.zeros(memory.num_blocks + 1, np.int32)
    np.maximum.at(most, pages, filled)
    return int(most.sum()), int(np.count_nonzero(most)) * size
