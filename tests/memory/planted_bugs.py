"""Faults a block manager may have, each small enough to be a slip, planted one at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paxkv.memory import BlockManager, HashChain
from paxkv.memory import growth as growth_module
from paxkv.memory.copies import PendingCopies
from paxkv.memory.pool import EvictionQueue, PagePool
from paxkv.memory.prefix import Block, PrefixIndex, RowHashes
from paxkv.memory.state import MemoryState
from paxkv.memory.tables import BlockTables

Plant = Callable[[pytest.MonkeyPatch], None]
PLANTED: dict[str, Plant] = {}


def planted(plant: Plant) -> Plant:
    PLANTED[plant.__name__] = plant
    return plant


def around(patch: pytest.MonkeyPatch, owner: type, name: str, wrong: Callable[..., Any]) -> None:
    """Replace method `name` by `wrong(right, self, ...)`."""
    right = getattr(owner, name)
    patch.setattr(owner, name, lambda self, *args, **kw: wrong(right, self, *args, **kw))


# References


@planted
def dropped_decrement(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: PagePool, pages: Any) -> Any:
        return right(self, pages[:-1])

    around(patch, PagePool, "drop", wrong)


@planted
def hit_without_reference(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: PagePool, pages: Any) -> None:
        self.evictable.remove(pages[self.refs[pages] == 0])

    around(patch, PagePool, "pin", wrong)


@planted
def hit_stays_evictable(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: PagePool, pages: Any) -> None:
        self.refs[pages] += 1

    around(patch, PagePool, "pin", wrong)


@planted
def fork_without_reference(patch: pytest.MonkeyPatch) -> None:
    around(patch, PagePool, "share", lambda right, self, pages: None)


@planted
def shared_page_counted_once(patch: pytest.MonkeyPatch) -> None:
    """`refs[pages] += 1` instead of `np.add.at`: a page mentioned twice counts once."""

    def wrong(right: Any, self: PagePool, pages: Any) -> None:
        self.refs[pages] += 1

    around(patch, PagePool, "share", wrong)


@planted
def freed_twice(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: PagePool, idle: Any) -> None:
        right(self, idle)
        free = idle[~self.cached[idle]][:1]
        if len(free) and self._num_free < self.num_pages:
            right(self, free)

    around(patch, PagePool, "settle", wrong)


# Room and eviction


@planted
def hits_counted_as_room(patch: pytest.MonkeyPatch) -> None:
    around(patch, PagePool, "room_beside", lambda right, self, pinned: self.num_available)


@planted
def pinned_before_the_check(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: PagePool, pinned: Any) -> int:
        room = right(self, pinned)
        idle = pinned[self.refs[pinned] == 0]
        self.evictable.remove(idle)
        self.evictable.append(idle)
        return room

    around(patch, PagePool, "room_beside", wrong)


@planted
def newest_evicted_first(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: EvictionQueue, count: int) -> Any:
        pages = self.pages()[::-1][:count].copy()
        self.remove(pages)
        return pages

    around(patch, EvictionQueue, "pop", wrong)


@planted
def heads_evicted_before_tails(patch: pytest.MonkeyPatch) -> None:
    around(
        patch, EvictionQueue, "append", lambda right, self, pages: right(self, pages[::-1].copy())
    )


@planted
def batch_freed_heads_first(patch: pytest.MonkeyPatch) -> None:
    around(patch, BlockTables, "tails_first", lambda right, self, columns: np.argsort(columns))


@planted
def cached_evicted_before_blank(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: PagePool, count: int) -> Any:
        if len(self.evictable) < count:
            return right(self, count)
        pages = self.evictable.pop(count)
        self.cached[pages] = False
        self.refs[pages] = 1
        return pages, pages

    around(patch, PagePool, "take", wrong)


@planted
def evicted_page_stays_in_the_index(patch: pytest.MonkeyPatch) -> None:
    around(patch, MemoryState, "take", lambda right, self, count: self.pool.take(count)[0])


# Copy-on-write


@planted
def shared_tail_written_in_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(growth_module, "_must_copy", lambda pages, refs: np.zeros(len(pages), np.bool_))


@planted
def last_sharer_copies_too(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(growth_module, "_must_copy", lambda pages, refs: np.ones(len(pages), np.bool_))


@planted
def copy_skipped(patch: pytest.MonkeyPatch) -> None:
    around(patch, PendingCopies, "add", lambda right, self, sources, targets: None)


@planted
def copied_from_the_wrong_page(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: PendingCopies, sources: Any, targets: Any) -> None:
        right(self, np.where(sources > 1, sources - 1, sources + 1), targets)

    around(patch, PendingCopies, "add", wrong)


@planted
def copied_backwards(patch: pytest.MonkeyPatch) -> None:
    around(patch, PendingCopies, "take", lambda right, self: right(self)[::-1])


@planted
def copy_into_a_freed_page(patch: pytest.MonkeyPatch) -> None:
    around(patch, PendingCopies, "cancel", lambda right, self, targets: 0)


@planted
def copy_from_a_freed_page(patch: pytest.MonkeyPatch) -> None:
    around(patch, PendingCopies, "read_from", lambda right, self, pages: pages[:0])


@planted
def copies_needed_are_no_need_for_pages(patch: pytest.MonkeyPatch) -> None:
    right = growth_module.plan_growth

    def wrong(*args: Any) -> Any:
        plan = right(*args)
        return plan._replace(total=int(plan.fresh.sum()))

    patch.setattr("paxkv.memory.manager.plan_growth", wrong)


# Prefix cache


@planted
def hash_without_parent(patch: pytest.MonkeyPatch) -> None:
    """Digests of the tokens alone, and digests believed."""
    around(
        patch,
        HashChain,
        "__init__",
        lambda right, self, size, **kw: right(
            self, size, **{**kw, "block_hash": lambda parent, payload: payload}
        ),
    )
    around(patch, Block, "same_content", lambda right, self, other: True)


@planted
def hash_without_parent_but_compared(patch: pytest.MonkeyPatch) -> None:
    """Never a wrong token, but hits are lost."""
    around(
        patch,
        HashChain,
        "__init__",
        lambda right, self, size, **kw: right(
            self, size, **{**kw, "block_hash": lambda parent, payload: payload}
        ),
    )


@planted
def salt_ignored(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: HashChain, weights_version: Any) -> None:
        self.salt = None
        right(self, weights_version)

    around(patch, HashChain, "rebase", wrong)


@planted
def weights_ignored(patch: pytest.MonkeyPatch) -> None:
    """Rows from before the update go on caching, under keys that do not say so."""

    def wrong(right: Any, self: BlockManager, weights_version: Any = None) -> None:
        caching = self._row_hashes.enabled.copy()
        right(self)
        self._row_hashes.enabled[:] = caching

    around(patch, BlockManager, "reset_prefix_cache", wrong)


@planted
def partial_block_published(patch: pytest.MonkeyPatch) -> None:
    def wrong(
        right: Any, self: BlockManager, row: int, token_ids: list[int], num_tokens: int
    ) -> int:
        size = self.block_size
        full = -(-num_tokens // size) * size
        known = [*token_ids[:num_tokens], *[0] * (full - num_tokens)]
        granted = int(self.num_tokens[row])
        self.num_tokens[row] = max(full, granted)
        entered = right(self, row, known, full)
        self.num_tokens[row] = granted
        return entered

    around(patch, BlockManager, "cache_blocks", wrong)


@planted
def last_token_taken_from_the_cache(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: RowHashes, chain: Any, token_ids: list[int]) -> Any:
        return right(self, chain, [*token_ids, 0])

    around(patch, RowHashes, "match", wrong)


@planted
def second_page_for_one_digest(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: PrefixIndex, block: Block, page: int) -> bool:
        self._pages[block.digest] = page
        self._blocks[page] = block
        return True

    around(patch, PrefixIndex, "add", wrong)


@planted
def children_hash_on_from_the_parents_chain(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: RowHashes, sources: Any, targets: Any) -> None:
        chains = self._chains[sources]
        right(self, sources, targets)
        self._chains[targets] = chains

    around(patch, RowHashes, "copy", wrong)


@planted
def uncomputed_blocks_stay_published(patch: pytest.MonkeyPatch) -> None:
    around(
        patch, BlockManager, "withdraw", lambda right, self, row, num_tokens: np.zeros(0, np.int32)
    )


@planted
def fewer_blocks_are_as_published_as_all(patch: pytest.MonkeyPatch) -> None:
    around(patch, RowHashes, "shorten", lambda right, self, row, num_blocks: None)


@planted
def blocks_are_shared_without_reference(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: BlockManager, source: int, num_blocks: int) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(PagePool, "share", lambda self, pages: None)
            return right(self, source, num_blocks)

    around(patch, BlockManager, "fork_blocks", wrong)


# Tables


@planted
def fork_forgets_the_device_table(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: BlockTables, sources: Any, targets: Any) -> Any:
        known = list(self._patched)
        answer = right(self, sources, targets)
        self._patched = known
        return answer

    around(patch, BlockTables, "gather", wrong)


@planted
def permuted_one_row_at_a_time(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: BlockManager, sources: Any, targets: Any) -> None:
        for source, target in zip(sources, targets):
            right(self, [source], [target])

    around(patch, BlockManager, "fork_rows", wrong)


@planted
def one_page_too_few(patch: pytest.MonkeyPatch) -> None:
    """`n // block_size` where the rounded-up quotient is meant."""
    right = growth_module.plan_growth

    def wrong(state: Any, rows: Any, num_tokens: Any) -> Any:
        plan = right(state, rows, num_tokens)
        fresh = np.maximum(plan.after // state.tables.block_size - plan.columns, 0)
        return plan._replace(fresh=fresh, total=int(fresh.sum()) + len(plan.copying))

    patch.setattr("paxkv.memory.manager.plan_growth", wrong)
