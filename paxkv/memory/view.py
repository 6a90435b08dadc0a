"""Read-only view of a block manager."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from html import escape

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paxkv.memory.pool import Int32Array, PagePool
from paxkv.memory.prefix import Identity, RowHashes
from paxkv.memory.results import MemoryStats, Snapshot
from paxkv.memory.state import MemoryState
from paxkv.memory.swap import SwapSpace
from paxkv.memory.tables import BlockTables, Rows


class MemoryView:
    """The read-only part of `BlockManager`."""

    num_blocks: int
    block_size: int
    swap: SwapSpace
    _tables: BlockTables
    _state: MemoryState
    _pool: PagePool
    _row_hashes: RowHashes
    _weights_version: Identity

    @property
    def tables(self) -> Int32Array:
        """`[max_rows, max_blocks_per_row]` int32; cells past a row's last page are stale."""
        return self._tables.pages

    @property
    def num_tokens(self) -> Int32Array:
        """`[max_rows]` int32, slots granted to each row; 0 where no sequence lives."""
        return self._tables.num_tokens

    @property
    def references(self) -> Int32Array:
        """`[num_blocks + 1]` int32, table cells that name each page."""
        return self._pool.refs

    @property
    def cached(self) -> NDArray[np.bool_]:
        """`[num_blocks + 1]` bool, pages the prefix cache knows, in use or not."""
        return self._pool.cached

    @property
    def live_rows(self) -> Int32Array:
        """Rows that hold a sequence, ascending."""
        return np.flatnonzero(self._tables.live).astype(np.int32)

    @property
    def num_free_blocks(self) -> int:
        """Pages that can be allocated: free ones, and cached ones without references."""
        return self._pool.num_available

    @property
    def weights_version(self) -> Identity:
        return self._weights_version

    @property
    def max_tokens_per_row(self) -> int:
        """Tokens one sequence can hold when it has the whole pool to itself."""
        return min(self.num_blocks, self._tables.max_columns) * self.block_size

    def fits(self, num_tokens: int) -> bool:
        """Whether a sequence of `num_tokens` fits into an empty pool."""
        return num_tokens <= self.max_tokens_per_row

    def row_pages(self, row: int) -> Int32Array:
        """The pages of one live row, in order, `[columns]`; a copy."""
        return self._tables.held(self._tables.require_row(row)).copy()

    def slots(self, rows: ArrayLike, positions: ArrayLike) -> Int32Array:
        """Flat slots `page * block_size + offset` of token `positions[i]` of `rows[i]`.

        Raises:
            ValueError: a position without a slot.
        """
        rows = np.asarray(rows, np.int32)
        positions = np.asarray(positions, np.int32)
        if np.any((positions < 0) | (positions >= self.num_tokens[rows])):
            raise ValueError("positions must be 0 or more and below num_tokens of their row")
        columns, offsets = np.divmod(positions, self.block_size)
        return (self.tables[rows, columns] * self.block_size + offsets).astype(np.int32)

    def flat_pages(self, rows: Rows) -> tuple[Int32Array, Int32Array]:
        """The pages of `rows` one row after another, and the column each stands in."""
        return self._tables.flat(np.asarray(rows, np.int32))

    def blocks_freed(self, rows: Rows) -> int:
        """Pages that become free when `rows` end together: those that no other row holds."""
        pages, inside = np.unique(self.flat_pages(rows)[0], return_counts=True)
        return int(np.count_nonzero(self.references[pages] == inside))

    # Proof

    def stats(self) -> MemoryStats:
        """Pages now, and counters since the manager was made."""
        return self._state.stats()

    def snapshot(self) -> Snapshot:
        """The whole state as a value; two are equal iff nothing changed in between."""
        return replace(self._state.snapshot(), host=self.swap.snapshot())

    def check_invariants(self) -> None:
        """Raise `InvariantError` with a sentence if the state contradicts itself."""
        self._state.check()
        self.swap.check()

    def __repr__(self) -> str:
        return (
            f"BlockManager({self.num_blocks} blocks of {self.block_size}, "
            f"{self.num_free_blocks} free, {len(self._row_hashes.index)} cached, "
            f"{len(self.live_rows)} rows live)"
        )

    def __str__(self) -> str:
        return describe_rows(repr(self), self._tables, self._pool)

    def _repr_html_(self) -> str:
        return rows_as_html(repr(self), self._tables, self._pool)


HEADINGS = ("row", "logical block", "physical block", "filled", "references")
MOST_LINES = 200


def describe_rows(title: str, tables: BlockTables, pool: PagePool) -> str:
    """`title`, then a line per page of every live row, 200 lines at most."""
    cells = [HEADINGS, *_lines(tables, pool)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(HEADINGS))]
    lines = [
        "  ".join(text.rjust(width) for text, width in zip(line, widths)).rstrip() for line in cells
    ]
    return "\n".join([title, *lines, *_left_out(tables)])


def rows_as_html(title: str, tables: BlockTables, pool: PagePool) -> str:
    """The same as a table for notebooks; rows are set apart, shared pages are bold."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in HEADINGS)
    body = []
    for line in _lines(tables, pool):
        shared = ' style="font-weight:bold"' if int(line[-1]) > 1 else ""
        rule = ' style="border-top:1px solid"' if line[1] == "0" else ""
        body.append(f"<tr{rule}>" + "".join(f"<td{shared}>{text}</td>" for text in line) + "</tr>")
    note = "".join(f"<p>{escape(line)}</p>" for line in _left_out(tables))
    return (
        f"<div><p>{escape(title)}</p><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table>{note}</div>"
    )


def _lines(tables: BlockTables, pool: PagePool) -> Iterator[tuple[str, ...]]:
    """Cells of each line, in the order of `HEADINGS`."""
    count = 0
    for row in np.flatnonzero(tables.live).tolist():
        left = int(tables.num_tokens[row])
        for column, page in enumerate(tables.held(row).tolist()):
            if count == MOST_LINES:
                return
            filled = f"{min(left, tables.block_size)}/{tables.block_size}"
            yield str(row), str(column), str(page), filled, str(pool.refs[page])
            left -= tables.block_size
            count += 1


def _left_out(tables: BlockTables) -> list[str]:
    live = np.flatnonzero(tables.live).astype(np.int32)
    more = int(tables.columns(live).sum()) - MOST_LINES
    return [f"… and {more} more"] if more > 0 else []
