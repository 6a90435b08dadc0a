"""Growth of a batch of rows: pages needed, and rows that must copy their tail page."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paxkv.memory.pool import Int32Array
from paxkv.memory.results import OutOfBlocks
from paxkv.memory.state import MemoryState


class GrowthPlan(NamedTuple):
    """A planned growth; arrays are `[len(rows)]` unless said otherwise.

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


def room(state: MemoryState, row: int) -> int:
    """Slots by which a live row can grow with the pages that are free."""
    pages, size, free = state.tables.held(row), state.tables.block_size, state.pool.num_available
    slack = -int(state.tables.num_tokens[row]) % size
    if slack and state.pool.refs[pages[-1]] > 1:
        # The tail must be copied before anything goes into it.
        slack = slack - size if free else 0
    return free * size + slack


def plan_growth(state: MemoryState, rows: Int32Array, num_tokens: ArrayLike) -> GrowthPlan:
    """Plan `num_tokens` more slots (one number, or one per row) for each of `rows`.

    Raises ValueError if `num_tokens` is below 1 or a row would outgrow its block table.
    """
    tables, refs = state.tables, state.pool.refs
    least = np.min(num_tokens, initial=1)
    if least < 1:
        raise ValueError(f"num_tokens is {least}; it must be at least 1")
    before = tables.num_tokens[rows]
    after = (before + np.asarray(num_tokens)).astype(np.int32)
    widest = tables.max_columns * tables.block_size
    if after.max(initial=0) > widest:
        worst = int(after.argmax())
        raise ValueError(
            f"num_tokens would bring row {rows[worst]} to {after[worst]} tokens; a block table "
            f"has room for {widest}"
        )
    columns = -(-before // tables.block_size)
    fresh = -(-after // tables.block_size) - columns
    tails = tables.pages[rows, columns - 1]
    shared = (refs[tails] > 1) & (before % tables.block_size != 0)
    copying = np.flatnonzero(shared)
    if len(copying):
        copying = copying[_must_copy(tails[copying], refs)]
    return GrowthPlan(rows, after, columns, fresh, copying, tails, int(fresh.sum()) + len(copying))


def grow(state: MemoryState, plan: GrowthPlan) -> None:
    """Carry out a plan; raises OutOfBlocks, nothing having changed, if pages are too few."""
    tables, pool = state.tables, state.pool
    if plan.total > pool.num_available:
        raise OutOfBlocks(
            f"{plan.total} blocks are needed and {pool.num_available} of {pool.num_pages} are free"
        )
    if plan.total:
        pages = state.take(plan.total)
        copies, added = pages[: len(plan.copying)], pages[len(plan.copying) :]
        if len(copies):
            _copy_on_write(state, plan, copies)
        tables.write(*plan.added_cells(), added)
    if len(state.host_copies):
        # Only its owner writes to a tail, and host memory has no part in that.
        grown = np.delete(np.arange(len(plan.rows)), plan.copying)
        partial = grown[tables.num_tokens[plan.rows[grown]] % tables.block_size != 0]
        state.host_copies.part_devices(plan.tails[partial])
    tables.num_tokens[plan.rows] = plan.after


def _copy_on_write(state: MemoryState, plan: GrowthPlan, targets: Int32Array) -> None:
    state.copy(plan.tails[plan.copying], targets)
    state.tables.write(plan.rows[plan.copying], plan.columns[plan.copying] - 1, targets)


def _must_copy(pages: Int32Array, refs: Int32Array) -> NDArray[np.bool_]:
    """Per mention of a shared page: whether others still hold it when its turn comes."""
    order = np.argsort(pages, kind="stable")
    ordered = pages[order]
    turn = np.empty(len(pages), np.int64)
    turn[order] = np.arange(len(pages)) - np.searchsorted(ordered, ordered)
    return turn < refs[pages] - 1
