"""How many pages a batch of rows needs to grow, and which of them must copy their tail."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paxkv.memory.lru import Int32Array
from paxkv.memory.tables import BlockTables


class GrowthPlan(NamedTuple):
    """A growth worked out but not carried out; `[len(rows)]` unless said otherwise.

    Attributes:
        rows: distinct live rows.
        after: token slots each will have.
        columns: pages each holds now.
        fresh: pages each gets at its end.
        copying: indices into the batch of rows whose tail page must be copied, any number.
        tails: the last page each holds now.
        total: pages needed in all.
    """

    rows: Int32Array
    after: Int32Array
    columns: Int32Array
    fresh: Int32Array
    copying: NDArray[np.intp]
    tails: Int32Array
    total: int

    def added_cells(self) -> tuple[Int32Array, Int32Array]:
        """Table cells of the pages at the end, `(rows, columns)`, `[fresh.sum()]`."""
        owners = np.repeat(self.rows, self.fresh)
        first = self.columns - (np.cumsum(self.fresh) - self.fresh)
        columns = np.arange(len(owners)) + np.repeat(first, self.fresh)
        return owners, columns.astype(np.int32)


def plan_growth(
    tables: BlockTables, refs: Int32Array, rows: Int32Array, num_tokens: ArrayLike
) -> GrowthPlan:
    """Plan `num_tokens` more slots (one number, or one per row) for each of `rows`."""
    before = tables.num_tokens[rows]
    after = (before + np.asarray(num_tokens)).astype(np.int32)
    columns = -(-before // tables.block_size)
    fresh = -(-after // tables.block_size) - columns
    tails = tables.pages[rows, columns - 1]
    shared = (refs[tails] > 1) & (before % tables.block_size != 0)
    copying = np.flatnonzero(shared)
    if len(copying):
        copying = copying[_must_copy(tails[copying], refs)]
    return GrowthPlan(rows, after, columns, fresh, copying, tails, int(fresh.sum()) + len(copying))


def _must_copy(pages: Int32Array, refs: Int32Array) -> NDArray[np.bool_]:
    """Per mention of a shared page: whether others still hold it when its turn comes."""
    order = np.argsort(pages, kind="stable")
    ordered = pages[order]
    turn = np.empty(len(pages), np.int64)
    turn[order] = np.arange(len(pages)) - np.searchsorted(ordered, ordered)
    return turn < refs[pages] - 1
