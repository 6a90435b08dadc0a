"""Contiguous allocation, for comparison: one reservation of the maximum length per sequence."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from paxkv.memory.manager import BlockManager
from paxkv.memory.prefix import TokenIds
from paxkv.memory.results import Allocation, Growth
from paxkv.memory.tables import Rows


class ContiguousManager(BlockManager):
    """A block manager that reserves the maximum length for each sequence.

    For comparison with paging, in the same engine and the same pool. The pages of a reservation
    lie next to each other: they are taken and given back together. Nothing is shared, so there
    are neither forks nor a prefix cache; nothing grows, so no sequence is preempted for memory.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, max_rows: int, max_blocks_per_row: int
    ) -> None:
        """Allocate the pool. Raises ValueError if it does not hold one reservation."""
        if num_blocks < max_blocks_per_row:
            raise ValueError(
                f"num_blocks={num_blocks} must be at least {max_blocks_per_row}, the reservation "
                "of one sequence"
            )
        super().__init__(
            num_blocks,
            block_size,
            max_rows=max_rows,
            max_blocks_per_row=max_blocks_per_row,
            caching=False,
        )

    def allocate(
        self,
        token_ids: TokenIds,
        *,
        first_chunk: int | None = None,
        **options: Any,
    ) -> Allocation | None:
        """Like `BlockManager.allocate`, but with all slots the sequence may ever need."""
        options |= {"headroom": 0, "chain": None, "use_cache": False, "cache_blocks": False}
        total = len(token_ids)
        if not 1 <= total <= self.max_tokens_per_row:
            return super().allocate(token_ids, first_chunk=first_chunk, **options)
        whole = super().allocate(range(self.max_tokens_per_row), **options)
        if whole is None:
            return None
        return Allocation(whole.row, 0, total if first_chunk is None else min(total, first_chunk))

    def blocks_needed(self, rows: Rows, num_tokens: ArrayLike = 1) -> int:
        return 0

    def room(self, row: int) -> int:
        return self.max_tokens_per_row

    def can_append(self, rows: int | Rows, num_tokens: ArrayLike = 1) -> bool:
        return True

    def append(self, row: int, num_tokens: int = 1) -> Growth:
        self._tables.require_row(row)
        return Growth((), None)

    def append_batch(self, rows: Rows, num_tokens: ArrayLike = 1) -> int:
        self._tables.require_live(rows)
        return 0

    def fork_rows(self, sources: Rows, targets: Rows) -> None:
        raise ValueError("contiguous reservations cannot be shared")
