"""Block tables as text."""

from __future__ import annotations

import numpy as np

from paxkv.memory.pool import PagePool
from paxkv.memory.tables import BlockTables


def describe_rows(title: str, tables: BlockTables, pool: PagePool) -> str:
    """`title`, then a line per page of every live row."""
    lines = [title, "row  block  page  filled  references"]
    for row in np.flatnonzero(tables.live).tolist():
        left = int(tables.num_tokens[row])
        for column, page in enumerate(tables.held(row).tolist()):
            filled = f"{min(left, tables.block_size)}/{tables.block_size}"
            lines.append(f"{row:3d}  {column:5d}  {page:4d}  {filled:>6s}  {pool.refs[page]:10d}")
            left -= tables.block_size
    return "\n".join(lines)
