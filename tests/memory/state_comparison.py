"""A block manager and the naive model hold the same."""

from __future__ import annotations

from collections.abc import Hashable

from naive_memory import Key, NaiveMemory, Page

from paxkv.memory import BlockManager


def assert_alike(bm: BlockManager, model: NaiveMemory, keys: dict[Hashable, Key]) -> None:
    """The whole state of `bm` equals the model's, up to the names of pages.

    keys: what each digest seen so far stands for.
    """
    snapshot = bm.snapshot()
    assert [row for row, *_ in snapshot.rows] == sorted(model.rows)
    named: dict[int, Page] = {}
    for row, granted, pages, cached in snapshot.rows:
        sequence = model.rows[row]
        assert granted == sequence.granted
        assert cached == sequence.cached
        assert len(pages) == len(sequence.pages)
        for page, modelled in zip(pages, sequence.pages):
            assert named.setdefault(page, modelled) is modelled, f"page {page} is two pages"
            assert snapshot.references[page] == modelled.refs
    assert len({id(modelled) for modelled in named.values()}) == len(named)
    stats = snapshot.stats
    assert stats.used_blocks == len(named)
    assert bm.num_free_blocks == model.free, f"{bm.num_free_blocks} free, not {model.free}"
    assert len(snapshot.free) == model.num_free
    assert len(snapshot.index) == len(model.cached)
    assert len(snapshot.copies) == len(model.copies)
    assert stats.cow_copies == model.num_copies
    assert stats.evictions == model.num_evictions
    assert len(snapshot.evictable) == len(model.evictable)
    for page, modelled in zip(snapshot.evictable, model.evictable):
        named[page] = modelled
    for page, digest in snapshot.index:
        key = named[page].key
        assert key is not None, f"page {page} is cached"
        assert keys.setdefault(digest, key) == key, f"page {page} is in another's place"
