"""Block tables as text and as HTML."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

import numpy as np

from paxkv.memory.pool import PagePool
from paxkv.memory.tables import BlockTables

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
