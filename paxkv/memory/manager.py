"""The block manager: which pages a sequence's KV lives in.

Host side only: numpy arrays and one dictionary; the contents of pages live on the device. Batches
are processed as whole arrays, so a fork is a row gather and a free is one subtraction.

`paxkv.memory.swap` manages sequences whose KV waits in host memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from paxkv.memory.growth import GrowthPlan, grow, plan_growth, room
from paxkv.memory.pool import Int32Array
from paxkv.memory.prefix import BlockHash, HashChain, Identity, TokenIds, sha256_block_hash
from paxkv.memory.results import Allocation, Growth
from paxkv.memory.state import MemoryState
from paxkv.memory.swap import SwapSpace
from paxkv.memory.tables import BlockTables, Rows
from paxkv.memory.view import MemoryView


class BlockManager(MemoryView):
    """Pages, block tables, sharing and the prefix cache of one engine.

    A sequence is a row, `0 .. max_rows - 1`. Its slots are granted by `allocate` and `append`;
    `num_tokens[row]` says how many there are. Pages are numbered from 1; page 0 is never given
    out. All methods either do what they say or raise or return None having changed nothing.

    Args:
        num_blocks: usable pages.
        block_size: tokens per page.
        max_rows: sequences that can be live at once.
        max_blocks_per_row: width of the block tables; by default one row can hold all pages.
        caching: False switches the prefix cache off for every request.
        weights_version: part of every cache key.
        num_host_blocks: host pages for swapped sequences.
        block_hash: `(parent digest, payload) -> digest`, replaceable in tests. Hits do not rely
            on it: content is compared.

    Attributes:
        swap: sequences in host memory.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        max_rows: int = 256,
        max_blocks_per_row: int | None = None,
        caching: bool = True,
        weights_version: Identity = None,
        num_host_blocks: int = 0,
        block_hash: BlockHash = sha256_block_hash,
    ) -> None:
        if max_blocks_per_row is None:
            max_blocks_per_row = num_blocks
        for name, value, least in (
            ("num_blocks", num_blocks, 1),
            ("block_size", block_size, 1),
            ("max_rows", max_rows, 1),
            ("max_blocks_per_row", max_blocks_per_row, 1),
            ("num_host_blocks", num_host_blocks, 0),
        ):
            if not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{name} is {value!r}; it must be an integer of at least {least}")
        self.num_blocks = int(num_blocks)
        self.block_size = int(block_size)
        self.caching = caching
        self._weights_version = weights_version
        self._block_hash = block_hash
        self._tables = BlockTables(int(max_rows), int(max_blocks_per_row), self.block_size)
        self._state = MemoryState(self._tables, self.num_blocks, int(num_host_blocks), block_hash)
        self.swap = SwapSpace(self._state, int(num_host_blocks))
        self._pool = self._state.pool
        self._row_hashes = self._state.row_hashes

    # Allocation

    def chain(self, *, salt: Identity = None, adapter: Identity = None) -> HashChain:
        """A request's block hashes, to be kept with the request and given to `allocate`."""
        return HashChain(
            self.block_size,
            salt=salt,
            adapter=adapter,
            weights_version=self._weights_version,
            block_hash=self._block_hash,
        )

    def allocate(
        self,
        token_ids: TokenIds,
        *,
        chain: HashChain | None = None,
        salt: Identity = None,
        adapter: Identity = None,
        first_chunk: int | None = None,
        headroom: int = 0,
        use_cache: bool = True,
        cache_blocks: bool = True,
        resumed: bool = False,
    ) -> Allocation | None:
        """Give a sequence a row and pages, sharing cached ones; all of it or nothing.

        Args:
            token_ids: all tokens known so far (prompt, and output when resumed).
            chain: the request's block hashes, so that they are made once; it then carries salt
                and adapter.
            first_chunk: grant slots to at most so many tokens after the cached ones; the rest
                comes by `append`. By default all of them.
            headroom: pages that must stay free beyond those taken.
            use_cache: False reads no cached page.
            cache_blocks: False leaves none.
            resumed: the request was preempted; its lookups count apart in `stats`.

        Returns:
            None if there is no row or not enough room; nothing has changed then.

        Raises:
            ValueError: `token_ids` is empty or could not fit into an empty pool.
        """
        total = len(token_ids)
        if not 1 <= total <= self.max_tokens_per_row:
            raise ValueError(
                f"token_ids has {total} tokens; it must have 1 to {self.max_tokens_per_row} "
                f"(what {min(self.num_blocks, self._tables.max_columns)} blocks of "
                f"{self.block_size} hold)"
            )
        if first_chunk is not None and first_chunk < 1:
            raise ValueError(f"first_chunk is {first_chunk}; it must be at least 1 or None")
        if headroom < 0:
            raise ValueError(f"headroom is {headroom}; it must be 0 or more")
        if chain is None:
            chain = self.chain(salt=salt, adapter=adapter)
        elif salt is not None or adapter is not None:
            raise ValueError("salt and adapter belong to the chain when one is given")
        looks_up = use_cache and self.caching
        matched = self._matched(chain, token_ids, looks_up)
        cached = len(matched) * self.block_size
        granted = total if first_chunk is None else min(total, cached + first_chunk)
        missing = -(-granted // self.block_size) - len(matched)
        rows = self._tables.spare_rows(1)
        if rows is None or missing + headroom > self._pool.room_beside(matched):
            return None
        row = int(rows[0])
        self._pool.pin(matched)
        pages = np.concatenate([matched, self._state.take(missing)])
        self._tables.start(row, pages, granted)
        self._row_hashes.start(row, chain, len(matched), enabled=cache_blocks and self.caching)
        if looks_up:
            self._state.count_lookup(total, cached, resumed=resumed)
        return Allocation(row, cached, granted - cached)

    def blocks_to_admit(
        self, token_ids: TokenIds, *, chain: HashChain | None = None, use_cache: bool = True
    ) -> int:
        """Free pages that `allocate` takes for all `token_ids`, evictable ones included."""
        looks_up = use_cache and self.caching
        matched = self._matched(chain or self.chain(), token_ids, looks_up)
        pinned = self.num_free_blocks - self._pool.room_beside(matched)
        return -(-len(token_ids) // self.block_size) - len(matched) + pinned

    def _matched(self, chain: HashChain, token_ids: TokenIds, looks_up: bool) -> Int32Array:
        if chain.weights_version != self._weights_version:
            chain.rebase(self._weights_version)
        return self._row_hashes.match(chain, token_ids) if looks_up else np.zeros(0, np.int32)

    # Growth

    def blocks_needed(self, rows: Rows, num_tokens: ArrayLike = 1) -> int:
        """Free pages that `append_batch(rows, num_tokens)` takes, copies included."""
        return self._plan(rows, num_tokens).total

    def room(self, row: int) -> int:
        """Slots that `append(row, …)` can grant now with the pages that are free."""
        return room(self._state, self._tables.require_row(row))

    def can_append(self, rows: int | Rows, num_tokens: ArrayLike = 1) -> bool:
        """Whether one row, or all of several, can grow by `num_tokens` slots (each) now."""
        batch = [rows] if isinstance(rows, int | np.integer) else rows
        return self._plan(batch, num_tokens).total <= self.num_free_blocks

    def append(self, row: int, num_tokens: int = 1) -> Growth:
        """Grant `num_tokens` more slots to `row`; a shared tail page is replaced by a copy.

        The copy is also in the next `take_copies`, the changed cells in `take_patches`.

        Raises:
            OutOfBlocks: too few free pages.
            ValueError: the row is not live, or would outgrow its block table.
        """
        plan = self._plan([row], num_tokens)
        grow(self._state, plan)
        start = int(plan.columns[0])
        pages = tuple(self.tables[row, start : start + int(plan.fresh[0])].tolist())
        if not len(plan.copying):
            return Growth(pages, None)
        return Growth(pages, (int(plan.tails[0]), int(self.tables[row, start - 1])))

    def append_batch(self, rows: Rows, num_tokens: ArrayLike = 1) -> int:
        """`append` for distinct rows, by `num_tokens` slots each (one number or one per row).

        Rows that write to one shared page get copies of it, but for the last of them when
        nobody outside the batch shares it: that one writes in place.

        Returns:
            Pages taken.

        Raises:
            OutOfBlocks, ValueError: like `append`; no row has grown.
        """
        plan = self._plan(rows, num_tokens)
        grow(self._state, plan)
        return plan.total

    def _plan(self, rows: Rows, num_tokens: ArrayLike) -> GrowthPlan:
        return plan_growth(self._state, self._tables.require_live(rows), num_tokens)

    # Sharing and freeing

    def fork(self, source: int, count: int) -> Int32Array | None:
        """Fork `count` new rows that share all pages of row `source`; None if rows run out.

        Copies are made when a step starts: the first `append` to any of these rows belongs in a
        later step than the one that fills the slots `source` has now.
        """
        if count < 1:
            raise ValueError(f"count is {count}; it must be at least 1")
        self._tables.require_row(source)
        targets = self._tables.spare_rows(count)
        if targets is not None:
            self.fork_rows(np.full(count, source, np.int32), targets)
        return targets

    def fork_rows(self, sources: Rows, targets: Rows) -> None:
        """Make row `targets[i]` a copy of row `sources[i]`, for all i at once.

        All sources are read first, so this permutes (beam search); what a target held before is
        freed. Sources are live rows, targets any distinct rows.
        """
        read = self._tables.require_live(sources, distinct=False)
        written = self._tables.require_targets(targets)
        if len(read) != len(written):
            raise ValueError(f"{len(read)} sources for {len(written)} targets")
        gained, lost, columns = self._tables.gather(read, written)
        self._pool.share(gained)
        self._row_hashes.copy(read, written)
        self._state.let_go(lost, columns)

    def fork_blocks(self, source: int, num_blocks: int) -> int | None:
        """Fork a row that shares the first `num_blocks` pages of row `source`, all of them full.

        Returns None if there is no row.

        Raises:
            ValueError: `source` is not live or has fewer full pages, or `num_blocks` is below 1.
        """
        full = int(self.num_tokens[self._tables.require_row(source)]) // self.block_size
        if not 1 <= num_blocks <= full:
            raise ValueError(f"num_blocks is {num_blocks}; row {source} has 1 to {full} full pages")
        rows = self._tables.spare_rows(1)
        if rows is None:
            return None
        row, pages = int(rows[0]), self.tables[source, :num_blocks].copy()
        self._pool.share(pages)
        self._tables.start(row, pages, num_blocks * self.block_size)
        self._row_hashes.copy(np.array([source], np.int32), rows)
        self._row_hashes.shorten(row, num_blocks)
        return row

    def spare_rows(self, count: int) -> Int32Array | None:
        """The `count` lowest rows that hold no sequence, or None if there are fewer."""
        return self._tables.spare_rows(count)

    def free(self, row: int) -> None:
        """End a sequence: pages nobody else holds become evictable (tail first) or free."""
        self._state.end(self._tables.require_row(row))

    def free_rows(self, rows: Rows) -> None:
        """`free` for distinct rows at once; of all their pages the tails are evicted first."""
        batch = self._tables.require_live(rows)
        pages, columns = self._tables.flat(batch)
        self._state.stop(batch)
        self._state.let_go(pages, columns)

    # Prefix cache

    def cache_blocks(self, row: int, token_ids: TokenIds, num_tokens: int) -> int:
        """Enter the full blocks among the first `num_tokens` tokens of `row` into the prefix cache.

        Call it when those tokens are certain and their KV is written no later than in the next
        step (prompt: when scheduled; output: at commit). A block whose content is cached
        already stays private to the row.

        Args:
            token_ids: the row's tokens from position 0.

        Returns:
            Pages entered.

        Raises:
            ValueError: `num_tokens` is above the slots granted or the tokens given.
        """
        self._tables.require_row(row)
        if num_tokens > min(len(token_ids), int(self.num_tokens[row])):
            raise ValueError(
                f"num_tokens is {num_tokens}; row {row} has {self.num_tokens[row]} slots and "
                f"token_ids {len(token_ids)} tokens"
            )
        done, full = int(self._row_hashes.done[row]), num_tokens // self.block_size
        if full <= done or not self._row_hashes.enabled[row]:
            return 0
        entered = self._row_hashes.cache_blocks(row, self.tables[row, done:full], token_ids)
        self._pool.cached[entered] = True
        return len(entered)

    def withdraw(self, row: int, num_tokens: int) -> Int32Array:
        """Drop what `row` cached past `num_tokens` from the prefix cache: it was never computed.

        For a row that is preempted, or whose step failed, after its blocks were cached.

        Returns:
            Other rows that share those pages and lack their KV as well.
        """
        return self._state.withdraw(self._tables.require_row(row), num_tokens)

    def reset_prefix_cache(self, weights_version: Identity = None) -> None:
        """Forget all cached content. Live rows keep their pages, but cache no more blocks.

        Args:
            weights_version: the version of the weights from now on, if it changes.
        """
        if weights_version is not None:
            self._weights_version = weights_version
        self._state.forget_all()
        self.swap.forget_cached()

    # For the device step

    def take_copies(self) -> tuple[Int32Array, Int32Array]:
        """Page copies for the next step, `(sources, targets)`; no page is in both."""
        return self._state.copies.take()

    def take_patches(self) -> tuple[Int32Array, Int32Array, Int32Array]:
        """Table cells changed since the last call, `(rows, columns, pages)`, each cell once.

        A device table that has had every patch equals `tables`.
        """
        return self._tables.take_patches()

    def patch_all(self) -> None:
        """Return every cell from the next `take_patches`: the device lost its table or patches."""
        self._tables.patch_all()
