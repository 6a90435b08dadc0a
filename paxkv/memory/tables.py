"""Block tables: one row of page ids per sequence, and the log of cells that changed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paxkv.memory.pool import Int32Array

Rows = Sequence[int] | NDArray[np.integer]
BoolArray = NDArray[np.bool_]


class BlockTables:
    """`pages[row, column]` is the page of tokens `column * block_size` onward of that row.

    Cells past a row's last page are stale and stay so: a copy of the table on a device equals
    this one, cell by cell, once it has applied every patch from `take_patches`.

    Attributes:
        pages: `[max_rows, max_columns]` int32.
        num_tokens: `[max_rows]` int32, token slots granted; 0 for a row that is not live.
        live: `[max_rows]` bool.
    """

    def __init__(self, max_rows: int, max_columns: int, block_size: int) -> None:
        self.block_size = block_size
        self.pages: Int32Array = np.zeros((max_rows, max_columns), np.int32)
        self.num_tokens: Int32Array = np.zeros(max_rows, np.int32)
        self.live: BoolArray = np.zeros(max_rows, np.bool_)
        self._patched: list[NDArray[np.int64]] = []

    @property
    def max_rows(self) -> int:
        return self.pages.shape[0]

    @property
    def max_columns(self) -> int:
        return self.pages.shape[1]

    def columns(self, rows: Int32Array) -> Int32Array:
        """Pages each of `rows` holds, `[len(rows)]`."""
        return -(-self.num_tokens[rows] // self.block_size)

    def held(self, row: int) -> Int32Array:
        """The pages of one row, in order; a view."""
        return self.pages[row, : -(-int(self.num_tokens[row]) // self.block_size)]

    def flat(self, rows: Int32Array) -> tuple[Int32Array, Int32Array]:
        """The pages of `rows` one after another, and the column each stands in."""
        counts = self.columns(rows)
        columns = np.arange(int(counts.max(initial=0)), dtype=np.int32)
        inside = columns < counts[:, None]
        block = self.pages[rows, : len(columns)]
        return block[inside], np.broadcast_to(columns, inside.shape)[inside]

    def tails_first(self, columns: Int32Array) -> NDArray[np.intp]:
        """Stable order with the highest of `columns` first."""
        # 16-bit keys are sorted by radix, several times faster.
        small = self.max_columns < 2**15
        return np.argsort((-columns).astype(np.int16 if small else np.int32), kind="stable")

    def spare_rows(self, count: int) -> Int32Array | None:
        """The `count` lowest rows that are not live, or None if there are fewer."""
        rows = np.flatnonzero(~self.live)[:count].astype(np.int32)
        return rows if len(rows) == count else None

    def start(self, row: int, pages: Int32Array, num_tokens: int) -> None:
        """Make a spare row live, with these pages and slots."""
        columns = np.arange(len(pages), dtype=np.int32)
        self.write(np.full(len(pages), row, np.int32), columns, pages)
        self.num_tokens[row] = num_tokens
        self.live[row] = True

    def write(self, rows: Int32Array, columns: Int32Array, pages: Int32Array) -> None:
        """Set the cells `(rows[i], columns[i])` to `pages[i]` and log them."""
        self.pages[rows, columns] = pages
        self._log(rows, columns)

    def gather(
        self, sources: Int32Array, targets: Int32Array
    ) -> tuple[Int32Array, Int32Array, Int32Array]:
        """Make each of `targets` (distinct) a copy of the row in `sources`, all read first.

        Only cells that differ are touched. Rows in `targets` become live.

        Returns:
            Pages that gained a mention, pages that lost one, and the columns of the latter.
        """
        was = self.columns(targets)
        becomes = self.columns(sources)
        width = max(int(was.max(initial=0)), int(becomes.max(initial=0)))
        columns = np.arange(width, dtype=np.int32)
        old = self.pages[targets, :width]
        new = self.pages[sources, :width]
        held = columns < was[:, None]
        needed = columns < becomes[:, None]
        differs = new != old
        gains = needed & (differs | ~held)
        losses = held & (differs | ~needed)
        which, at = np.nonzero(needed & differs)
        self.write(targets[which], at.astype(np.int32), new[which, at])
        self.num_tokens[targets] = self.num_tokens[sources]
        self.live[targets] = True
        lost_at = np.broadcast_to(columns, losses.shape)[losses]
        return new[gains], old[losses], lost_at

    def replace(self, old: int, new: int) -> None:
        """Write page `new` wherever a live row holds page `old`."""
        rows, columns = self.cells(np.array([old], np.int32))
        self.write(rows, columns, np.full(len(rows), new, np.int32))

    def rows_with(self, pages: Int32Array) -> Int32Array:
        """Live rows that hold any of `pages`, ascending."""
        return np.unique(self.cells(pages)[0])

    def cells(self, pages: Int32Array) -> tuple[Int32Array, Int32Array]:
        """`(rows, columns)` where live rows hold any of `pages`, row by row."""
        rows, columns = np.nonzero(np.isin(self.pages, pages))
        inside = columns < self.columns(rows.astype(np.int32))
        return rows[inside].astype(np.int32), columns[inside].astype(np.int32)

    def require_row(self, row: int) -> int:
        if not (0 <= row < self.max_rows and self.live[row]):
            raise ValueError(f"row is {row}; it must be a live row, 0..{self.max_rows - 1}")
        return row

    def require_live(self, rows: Rows, *, distinct: bool = True) -> Int32Array:
        batch = np.asarray(rows, np.int32)
        self._require_range("rows", batch)
        if not self.live[batch].all():
            raise ValueError(f"rows must be live: {batch}; these are: {np.flatnonzero(self.live)}")
        if distinct:
            self._require_distinct("rows", batch)
        return batch

    def require_targets(self, rows: Rows) -> Int32Array:
        batch = np.asarray(rows, np.int32)
        self._require_range("targets", batch)
        self._require_distinct("targets", batch)
        return batch

    def _require_range(self, name: str, rows: Int32Array) -> None:
        if len(rows) and (rows.min() < 0 or rows.max() >= self.max_rows):
            raise ValueError(f"{name} must be in 0..{self.max_rows - 1}: {rows}")

    def _require_distinct(self, name: str, rows: Int32Array) -> None:
        if len(rows) > 1 and np.bincount(rows).max() > 1:
            raise ValueError(f"{name} must be distinct: {rows}")

    def take_patches(self) -> tuple[Int32Array, Int32Array, Int32Array]:
        """Cells changed since the last call as `(rows, columns, pages)`, each cell once."""
        if not self._patched:
            empty = np.zeros(0, np.int32)
            return empty, empty, empty
        cells = np.unique(np.concatenate(self._patched))
        self._patched.clear()
        rows, columns = np.divmod(cells, self.max_columns)
        return rows.astype(np.int32), columns.astype(np.int32), self.pages.ravel()[cells]

    def patch_all(self) -> None:
        """Log every cell that was ever written: a device table starts from zeros."""
        self._log(*(found.astype(np.int32) for found in np.nonzero(self.pages)))

    def _log(self, rows: Int32Array, columns: Int32Array) -> None:
        if len(rows):
            self._patched.append(rows.astype(np.int64) * self.max_columns + columns)
