"""State and owner of each page of a pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paxkv.memory import BlockManager

FREE, CACHED, OWNED, SHARED = range(4)
STATES = ("free", "cached", "owned", "shared")


@dataclass(frozen=True)
class PageStates:
    """All pages at one moment; index i is page i + 1.

    state: `[num_pages]`: free, cached (content kept, in no table), owned (in one table) or
        shared (in several).
    reusable: `[num_pages]` bool, pages the prefix cache knows, used or not.
    owner: `[num_pages]` int32, the lowest row that holds the page, -1 for none.
    column: `[num_pages]` int32, its place in that row's table.
    filled: `[num_pages]` int32, tokens in it, of those rows that hold it.
    references: `[num_pages]` int32.
    names: what each row is called.
    """

    block_size: int
    state: NDArray[np.int8]
    reusable: NDArray[np.bool_]
    owner: NDArray[np.int32]
    column: NDArray[np.int32]
    filled: NDArray[np.int32]
    references: NDArray[np.int32]
    names: Mapping[int, str] = field(default_factory=dict)

    @property
    def num_pages(self) -> int:
        return len(self.state)

    def counts(self) -> dict[str, int]:
        found = np.bincount(self.state, minlength=len(STATES)).tolist()
        return dict(zip(STATES, found))

    def owners(self) -> list[int]:
        """Rows that hold pages, ascending."""
        return np.unique(self.owner[self.owner >= 0]).tolist()

    def name(self, row: int) -> str:
        return self.names.get(row, f"row {row}")

    def describe(self, page: int) -> str:
        """One sentence on page `page`, 1 to `num_pages`."""
        place = page - 1
        state = int(self.state[place])
        if state == FREE:
            return f"page {page}: free"
        if state == CACHED:
            return f"page {page}: cached, free to be evicted"
        text = f"page {page}: {self.name(int(self.owner[place]))}, block {self.column[place]}"
        text += f", {self.filled[place]}/{self.block_size} filled"
        if state == SHARED:
            text += f", {self.references[place]} references"
        return text + (", cached" if self.reusable[place] else "")

    @classmethod
    def of(cls, memory: BlockManager, names: Mapping[int, str] | None = None) -> PageStates:
        """Read the states from `memory`, which is not changed."""
        count, size = memory.num_blocks, memory.block_size
        rows = memory.live_rows
        pages, columns = memory.flat_pages(rows)
        tokens = memory.num_tokens[rows]
        columns_of = -(-tokens // size)
        owners = np.repeat(rows, columns_of)
        owner = np.full(count + 1, -1, np.int32)
        column = np.zeros(count + 1, np.int32)
        # Written backwards, so that the lowest row stays.
        owner[pages[::-1]] = owners[::-1]
        column[pages[::-1]] = columns[::-1]
        filled = np.zeros(count + 1, np.int32)
        slots = np.clip(np.repeat(tokens, columns_of) - columns * size, 0, size)
        np.maximum.at(filled, pages, slots.astype(np.int32))
        references = memory.references.copy()
        reusable = np.zeros(count + 1, np.bool_)
        reusable[[page for page, _ in memory.snapshot().index]] = True
        state = np.where(references > 1, SHARED, np.where(references == 1, OWNED, FREE))
        state[(references == 0) & reusable] = CACHED
        return cls(
            size,
            state[1:].astype(np.int8),
            reusable[1:],
            owner[1:],
            column[1:],
            filled[1:],
            references[1:],
            dict(names or {}),
        )


def memory_of(source: Any) -> BlockManager:
    """The block manager of an `LLM`, an engine, or the one given.

    Raises:
        ValueError: `source` has none.
    """
    found = getattr(source, "engine", source)
    found = getattr(found, "block_manager", found)
    if not isinstance(found, BlockManager):
        raise ValueError(
            f"a {type(source).__name__} has no block manager; give an LLM, an engine or a "
            "BlockManager"
        )
    return found


def row_names(source: Any) -> dict[int, str]:
    """What the rows' requests are called, where the source knows requests."""
    scheduler = getattr(getattr(source, "engine", source), "scheduler", None)
    return dict(_named(scheduler.running)) if scheduler is not None else {}


def _named(running: Any) -> Iterator[tuple[int, str]]:
    for sequence in running:
        name = f"request {sequence.request.request_id}"
        if len(sequence.request.sequences) > 1:
            name += f", sequence {sequence.index}"
        yield sequence.row, name
