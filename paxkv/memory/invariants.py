"""Invariants that hold between any two calls of the block manager."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paxkv.memory.copies import PendingCopies
from paxkv.memory.pool import Int32Array, PagePool
from paxkv.memory.prefix import PrefixIndex
from paxkv.memory.tables import BlockTables
from paxkv.memory.transfers import HostCopies, PendingTransfers


class InvariantError(AssertionError):
    """The block manager's own state contradicts itself; says where."""


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise InvariantError(sentence)


def check_tables(tables: BlockTables, pool: PagePool) -> None:
    """Every reference is a table cell and every table cell is a reference."""
    dead = np.flatnonzero(~tables.live & (tables.num_tokens != 0))
    _require(not len(dead), f"rows {dead.tolist()} hold slots but are not live")
    rows = np.flatnonzero(tables.live).astype(np.int32)
    empty = rows[tables.num_tokens[rows] <= 0]
    _require(not len(empty), f"rows {empty.tolist()} are live without a slot")
    pages, columns = tables.flat(rows)
    _require(
        not np.any((pages < 1) | (pages > pool.num_pages)),
        f"a table names a page outside 1..{pool.num_pages}",
    )
    mentions = np.bincount(pages, minlength=pool.num_pages + 1)
    wrong = np.flatnonzero(mentions != pool.refs)
    _require(
        not len(wrong),
        f"pages {wrong.tolist()} have {pool.refs[wrong].tolist()} references but stand in "
        f"{mentions[wrong].tolist()} table cells",
    )
    last = np.zeros(pool.num_pages + 1, np.int32)
    last[pages] = columns
    _require(
        bool(np.all(last[pages] == columns)), "a page stands in two different columns of tables"
    )


def check_pool(pool: PagePool) -> None:
    """Used, evictable and free pages are three disjoint sets that make up the pool."""
    free, evictable = pool.free_pages(), pool.evictable.pages()
    _require(
        len(evictable) == len(pool.evictable),
        f"the eviction queue says {len(pool.evictable)} pages but holds {len(evictable)}",
    )
    used = np.flatnonzero(pool.refs)
    everything = np.sort(np.concatenate([free, evictable, used]))
    _require(
        np.array_equal(everything, np.arange(1, pool.num_pages + 1)),
        f"{len(free)} free, {len(evictable)} evictable and {len(used)} used pages are not "
        f"the pages 1..{pool.num_pages}, each once",
    )
    _require(not np.any(pool.refs < 0), "a page has a negative number of references")
    _require(bool(np.all(pool.cached[evictable])), "an evictable page is not cached")
    _require(not np.any(pool.cached[free]), "a free page is still cached")


def check_index(index: PrefixIndex, pool: PagePool, tables: BlockTables) -> None:
    """The prefix cache knows exactly the pages marked so, one per digest, full ones only."""
    entries = index.entries()
    marked = set(np.flatnonzero(pool.cached).tolist())
    _require(
        entries.keys() == marked,
        f"pages {sorted(entries.keys() ^ marked)} are cached in the pool or in the index only",
    )
    _require(len(index) == len(entries), "the prefix cache has two pages for one digest")
    for page, block in entries.items():
        _require(index.page_of(block.digest) == page, f"the digest of page {page} leads elsewhere")
    rows = np.flatnonzero(tables.live).astype(np.int32)
    partial = rows[tables.num_tokens[rows] % tables.block_size != 0]
    tails = tables.pages[partial, tables.columns(partial) - 1]
    known = tails[pool.cached[tails]]
    _require(not len(known), f"pages {known.tolist()} are cached but not full")
    pages, columns = tables.flat(rows)
    for page, column in zip(pages.tolist(), columns.tolist()):
        depth = entries[page].depth if page in entries else column + 1
        _require(
            depth == column + 1, f"page {page} in column {column} is cached as block {depth - 1}"
        )


def check_copies(copies: PendingCopies, pool: PagePool) -> None:
    """Pending copies lead from held pages to held pages, and no page is both."""
    sources, targets = copies.pairs()
    _require(len(targets) == len(copies), "the number of pending copies is wrong")
    _require(
        not np.intersect1d(sources, targets).size, "a page is source and target of pending copies"
    )
    _require(
        bool(np.all(pool.refs[targets] > 0) and np.all(pool.refs[sources] > 0)),
        "a pending copy reads or writes a page nobody holds",
    )


def check_host_pool(held: list[Int32Array], pool: PagePool, landed: NDArray[np.bool_]) -> None:
    """Host pages are held by swapped sequences, free, or waiting for a copy that has no reader."""
    everything = np.concatenate([np.zeros(0, np.int32), *held])
    mentions = np.bincount(everything, minlength=pool.num_pages + 1)
    wrong = np.flatnonzero(mentions != pool.refs)
    _require(
        not len(wrong),
        f"host pages {wrong.tolist()} have {pool.refs[wrong].tolist()} references but swapped "
        f"sequences name them {mentions[wrong].tolist()} times",
    )
    for pages in held:
        _require(len(np.unique(pages)) == len(pages), "a swapped sequence names a host page twice")
    unwanted = np.flatnonzero(~landed & (pool.refs == 0))
    parts = np.sort(np.concatenate([pool.free_pages(), np.flatnonzero(pool.refs), unwanted]))
    _require(
        np.array_equal(parts, np.arange(1, pool.num_pages + 1)),
        f"{pool.num_free} free, {np.count_nonzero(pool.refs)} used and {len(unwanted)} unwanted "
        f"host pages are not the pages 1..{pool.num_pages}, each once",
    )


def check_host_copies(host_copies: HostCopies, pool: PagePool, host: PagePool) -> None:
    """Pairs are mutual, as many as counted, and both pages are in use or cached."""
    devices = np.flatnonzero(host_copies.host_of)
    hosts = host_copies.host_of[devices]
    _require(len(devices) == len(host_copies), "the number of pairs is wrong")
    _require(
        np.array_equal(host_copies.device_of[hosts], devices)
        and len(devices) == np.count_nonzero(host_copies.device_of),
        "a pair of a device page and a host page is not mutual",
    )
    _require(bool(np.all(host.refs[hosts] > 0)), "a host page nobody holds has a host copy")
    _require(
        bool(np.all((pool.refs[devices] > 0) | pool.cached[devices])),
        "a device page neither held nor cached has a host copy",
    )


def check_transfers(transfers: PendingTransfers, copies: PendingCopies, pool: PagePool) -> None:
    """Copies and transfers of one step touch different pages, so their order does not matter."""
    arriving = transfers.arriving()
    _require(
        bool(np.all((pool.refs[arriving] > 0) | pool.cached[arriving])),
        "a page that arrives from host memory is neither held nor cached",
    )
    sources, targets = copies.pairs()
    _require(
        not np.intersect1d(arriving, np.concatenate([sources, targets])).size,
        "a page that arrives from host memory is also part of a pending copy",
    )
