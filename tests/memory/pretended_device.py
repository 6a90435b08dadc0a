"""What a device would hold: a table that is patched, and pages that are copied and written.

A number per slot stands for the KV there. It depends on the root and on every token up to it, so
a page shared wrongly, a copy skipped or a block hit under the wrong prefix reads back as a wrong
number.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from paxkv.memory import BlockManager, HashChain

MASK = (1 << 62) - 1


@dataclass
class Live:
    """A running sequence as its owner knows it."""

    tokens: list[int]
    salt: str | None
    weights: int
    granted: int
    computed: int
    prompt: int
    chain: HashChain | None

    @property
    def root(self) -> object:
        return self.salt, self.weights

    def kv(self) -> list[int]:
        value = hash(self.root) & MASK
        values = []
        for token in self.tokens:
            value = (value * 6364136223846793005 + token + 1442695040888963407) & MASK
            values.append(value)
        return values


@dataclass
class Waiting:
    tokens: list[int]
    salt: str | None
    prompt: int
    chain: HashChain | None


@dataclass
class Device:
    """Slots `kv [pages, block_size]` and the block table that names them."""

    table: np.ndarray
    kv: np.ndarray
    block_size: int = field(init=False)

    def __post_init__(self) -> None:
        self.block_size = self.kv.shape[1]

    def slots(self, row: int, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        positions = np.arange(start, stop)
        return self.table[row, positions // self.block_size], positions % self.block_size

    def patch(self, bm: BlockManager) -> None:
        rows, columns, pages = bm.take_patches()
        assert len(np.unique(rows * self.table.shape[1] + columns)) == len(rows)
        self.table[rows, columns] = pages
        assert np.array_equal(self.table, bm.tables), "the patches are not all changes"
        assert self.table.min() >= 0

    def copy(self, bm: BlockManager) -> int:
        """Carry out the copies of a step; returns how many."""
        sources, targets = bm.take_copies()
        assert len(set(targets.tolist())) == len(targets)
        assert not set(sources.tolist()) & set(targets.tolist())
        self.kv[targets] = self.kv[sources]
        return len(targets)

    def compute(self, bm: BlockManager, rows: dict[int, Live]) -> None:
        """Every row writes what it was granted, and then must read its own."""
        values = {row: np.array(live.kv(), np.int64) for row, live in rows.items()}
        for row, live in rows.items():
            where = self.slots(row, live.computed, live.granted)
            slots = bm.slots([row] * len(where[0]), range(live.computed, live.granted))
            assert np.array_equal(slots, where[0] * self.block_size + where[1])
            self.kv[where] = values[row][live.computed : live.granted]
            live.computed = live.granted
        for row, live in rows.items():
            found = self.kv[self.slots(row, 0, live.granted)]
            wrong = np.flatnonzero(found != values[row][: live.granted])
            assert not len(wrong), f"row {row} reads wrong KV at {wrong.tolist()}"
        assert not self.kv[0].any(), "page 0 was written"
