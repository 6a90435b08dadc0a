"""All memory state: pool, tables, prefix cache, pending copies and transfers, counters."""

from __future__ import annotations

import numpy as np

from paxkv.memory import invariants
from paxkv.memory.copies import PendingCopies
from paxkv.memory.pool import Int32Array, PagePool
from paxkv.memory.prefix import BlockHash, RowHashes
from paxkv.memory.results import MemoryStats, Snapshot
from paxkv.memory.tables import BlockTables
from paxkv.memory.transfers import HostCopies, PendingTransfers


class MemoryState:
    """Pool, tables, prefix cache and pending copies, kept in step with each other."""

    def __init__(
        self, tables: BlockTables, num_blocks: int, num_host_blocks: int, block_hash: BlockHash
    ) -> None:
        self.tables = tables
        self.pool = PagePool(num_blocks)
        self.copies = PendingCopies(num_blocks)
        self.transfers = PendingTransfers(num_blocks)
        self.host_copies = HostCopies(num_blocks, num_host_blocks)
        self.row_hashes = RowHashes(tables.max_rows, tables.block_size, block_hash)
        self._cow_copies = 0
        self._evictions = 0
        self._queries = [0, 0]
        self._hits = [0, 0]

    def take(self, count: int) -> Int32Array:
        """Take up to `pool.num_available` pages from the pool, with one reference each."""
        pages, evicted = self.pool.take(count)
        if len(evicted):
            self.row_hashes.index.remove(evicted)
            self._evictions += len(evicted)
            self._lose(evicted)
        return pages

    def copy(self, sources: Int32Array, targets: Int32Array) -> None:
        """Replace one reference to each of `sources` by a copy in the page taken for it."""
        self.pool.drop(sources)
        self.copies.add(sources, targets)
        self._cow_copies += len(targets)

    def end(self, row: int) -> None:
        """End a sequence: pages nobody else holds become evictable (tail first) or free."""
        pages = self.tables.held(row)[::-1].copy()
        self.stop(row)
        self.release(pages[self.pool.drop(pages)])

    def stop(self, rows: int | Int32Array) -> None:
        """Empty `rows`; the caller releases their pages."""
        self.tables.num_tokens[rows] = 0
        self.tables.live[rows] = False
        self.row_hashes.stop(rows)

    def let_go(self, pages: Int32Array, columns: Int32Array) -> None:
        """Drop a reference to each of `pages`, held in `columns`; the tails are evicted first."""
        idle = self.pool.drop(pages)
        pages, columns = pages[idle], columns[idle]
        self.release(pages[self.tables.tails_first(columns)])

    def release(self, idle: Int32Array) -> None:
        """Release pages without references, given in the order of eviction."""
        if len(self.copies):
            self._cow_copies -= self.copies.cancel(idle)
            for source in self.copies.read_from(idle).tolist():
                idle = np.where(idle == source, self._undo_copy(source), idle)
        if self.transfers or len(self.host_copies):
            self._lose(idle[~self.pool.cached[idle]])
        self.pool.settle(idle)

    def _lose(self, pages: Int32Array) -> None:
        """Discard the contents of `pages`."""
        self.transfers.cancel(pages)
        self.host_copies.part_devices(pages)

    def _undo_copy(self, source: int) -> np.int32:
        """Undo a pending copy of a page whose last owner has left.

        Of the rows that wait for one, the lowest gets the page itself; returns the page that is
        idle instead.
        """
        rows, columns = self.tables.cells(self.copies.targets_of(source))
        target = int(self.tables.pages[rows[0], columns[0]])
        both = np.array([source, target], np.int32)
        self.forget(both[self.pool.cached[both]])
        self.host_copies.part_devices(both)
        self._cow_copies -= self.copies.cancel(both[1:])
        self.tables.replace(target, source)
        self.pool.refs[both] = self.pool.refs[both[::-1]]
        return both[1]

    def forget(self, pages: Int32Array) -> None:
        """Drop pages that are not in the eviction queue from the prefix cache."""
        self.row_hashes.index.remove(pages)
        self.pool.cached[pages] = False

    def forget_all(self) -> None:
        """Empty the prefix cache."""
        self._lose(self.pool.evictable.pages())
        self.row_hashes.index.clear()
        self.pool.forget_all()
        self.row_hashes.enabled[:] = False

    def withdraw(self, row: int, num_tokens: int) -> Int32Array:
        """Take back what `row` cached past `num_tokens`; returns other rows with that."""
        done = int(self.row_hashes.done[row])
        first = max(int(self.row_hashes.hits[row]), num_tokens // self.tables.block_size)
        if first >= done:
            return np.zeros(0, np.int32)
        self.row_hashes.rewind(row, first)
        pages = self.tables.pages[row, first:done]
        # A reset may have dropped them from the cache; rows that hit them still hold them.
        self.forget(pages[self.pool.cached[pages]])
        sharing = self.tables.rows_with(pages)
        return sharing[sharing != row]

    def count_lookup(self, queries: int, hits: int, *, resumed: bool) -> None:
        """Count a request that found `hits` of its `queries` tokens in the prefix cache."""
        self._queries[resumed] += queries
        self._hits[resumed] += hits

    def stats(self) -> MemoryStats:
        pool = self.pool
        return MemoryStats(
            total_blocks=pool.num_pages,
            free_blocks=pool.num_available,
            used_blocks=int(np.count_nonzero(pool.refs)),
            cached_blocks=len(self.row_hashes.index),
            evictable_blocks=len(pool.evictable),
            shared_blocks=int(np.count_nonzero(pool.refs > 1)),
            live_rows=int(np.count_nonzero(self.tables.live)),
            cow_copies=self._cow_copies,
            evictions=self._evictions,
            prefix_queries=self._queries[False],
            prefix_hits=self._hits[False],
            resumed_queries=self._queries[True],
            resumed_hits=self._hits[True],
        )

    def snapshot(self) -> Snapshot:
        entries = self.row_hashes.index.entries()
        sources, targets = self.copies.pairs()
        return Snapshot(
            rows=tuple(
                (
                    row,
                    int(self.tables.num_tokens[row]),
                    tuple(self.tables.held(row).tolist()),
                    int(self.row_hashes.done[row]),
                )
                for row in np.flatnonzero(self.tables.live).tolist()
            ),
            references=tuple(self.pool.refs.tolist()),
            free=tuple(self.pool.free_pages().tolist()),
            evictable=tuple(self.pool.evictable.pages().tolist()),
            index=tuple((page, entries[page].digest) for page in sorted(entries)),
            copies=tuple(zip(sources.tolist(), targets.tolist())),
            host=(),
            stats=self.stats(),
        )

    def check(self) -> None:
        """Raise `InvariantError` if the parts contradict each other."""
        invariants.check_tables(self.tables, self.pool)
        invariants.check_pool(self.pool)
        invariants.check_index(self.row_hashes.index, self.pool, self.tables)
        invariants.check_copies(self.copies, self.pool)
