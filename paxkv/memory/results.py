"""Results of the block manager: allocations, growth, statistics."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


class OutOfBlocks(RuntimeError):
    """More pages were asked for than are free; nothing has changed."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A row granted to a sequence.

    Attributes:
        row: where its block table is.
        num_cached_tokens: leading tokens whose KV is there already, fewer than the tokens given:
            a multiple of the block size from the cache, any number from host memory.
        num_new_tokens: tokens after those that have slots now and must be computed.
    """

    row: int
    num_cached_tokens: int
    num_new_tokens: int


@dataclass(frozen=True, slots=True)
class Growth:
    """The pages that `append` added or copied.

    Attributes:
        pages: pages added at the end of the row.
        copy: `(source, target)` if the row's shared tail page was replaced by a copy.
    """

    pages: tuple[int, ...]
    copy: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Pages now, and counters since the manager was made.

    Attributes:
        total_blocks: usable pages (the padding page is extra).
        free_blocks: pages that can be given out: free ones and evictable ones.
        used_blocks: pages in some table; `free_blocks + used_blocks == total_blocks`.
        cached_blocks: pages the prefix cache knows, used or not.
        evictable_blocks: cached pages that nobody uses (part of `free_blocks`).
        shared_blocks: pages in more than one table.
        live_rows: sequences that hold a row.
        cow_copies: page copies made because a shared page was about to be written.
        evictions: cached pages given to someone else.
        prefix_queries: prompt tokens of requests that looked into the prefix cache when they
            first started.
        prefix_hits: how many of those tokens the cache had.
        resumed_queries: like `prefix_queries`, for requests resumed after preemption.
        resumed_hits: like `prefix_hits`, for the same.
    """

    total_blocks: int
    free_blocks: int
    used_blocks: int
    cached_blocks: int
    evictable_blocks: int
    shared_blocks: int
    live_rows: int
    cow_copies: int
    evictions: int
    prefix_queries: int
    prefix_hits: int
    resumed_queries: int
    resumed_hits: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that decides what the manager will do next; equal iff nothing changed.

    Attributes:
        rows: per live row: row, slots granted, pages, blocks cached.
        references: references of page 0, 1, ...
        free: free pages, the next one to be given out last.
        evictable: evictable pages, the next one to be evicted first.
        index: `(page, digest)` of every cached page, by page.
        copies: `(source, target)` of every pending copy.
        host: everything about swap space.
        stats: the statistics.
    """

    rows: tuple[tuple[int, int, tuple[int, ...], int], ...]
    references: tuple[int, ...]
    free: tuple[int, ...]
    evictable: tuple[int, ...]
    index: tuple[tuple[int, Hashable], ...]
    copies: tuple[tuple[int, int], ...]
    host: tuple[object, ...]
    stats: MemoryStats
