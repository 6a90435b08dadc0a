"""Who holds which page: reference counts, blank pages, evictable pages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paxkv.memory.lru import EvictionQueue, Int32Array


class PagePool:
    """Pages 1..num_pages; page 0 is the padding page and is never given out.

    A page is in exactly one state: used (`refs > 0`), evictable (no reference, but the prefix
    cache knows its content) or blank. Blank pages are given out before any is evicted.

    Attributes:
        refs: `[num_pages + 1]` int32, table cells that name the page.
        published: `[num_pages + 1]` bool, pages the prefix cache knows.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.refs: Int32Array = np.zeros(num_pages + 1, np.int32)
        self.published: NDArray[np.bool_] = np.zeros(num_pages + 1, np.bool_)
        self.evictable = EvictionQueue(num_pages)
        self._blank = np.arange(num_pages, 0, -1, dtype=np.int32)
        self._num_blank = num_pages
        self._mention = np.zeros(num_pages + 1, np.intp)

    @property
    def num_free(self) -> int:
        """Pages that `take` can give: blank and evictable."""
        return self._num_blank + len(self.evictable)

    @property
    def num_blank(self) -> int:
        return self._num_blank

    def blank_pages(self) -> Int32Array:
        """Blank pages, the next one to be given out last."""
        return self._blank[: self._num_blank].copy()

    def room_beside(self, pinned: Int32Array) -> int:
        """Free pages left once the pages `pinned` (distinct) are held."""
        return self.num_free - int(np.count_nonzero(self.refs[pinned] == 0))

    def take(self, count: int) -> tuple[Int32Array, Int32Array]:
        """Give out `count` pages with one reference each.

        Returns:
            The pages, and those among them that were evicted: the caller must drop their
            entries from the prefix cache (`published` is cleared here).
        """
        if count > self.num_free:
            raise ValueError(f"count is {count}; only {self.num_free} pages are free")
        from_blank = min(count, self._num_blank)
        self._num_blank -= from_blank
        pages = self._blank[self._num_blank : self._num_blank + from_blank][::-1].copy()
        evicted = pages[:0]
        if count > from_blank:
            evicted = self.evictable.pop(count - from_blank)
            self.published[evicted] = False
            pages = np.concatenate([pages, evicted])
        self.refs[pages] = 1
        return pages, evicted

    def pin(self, pages: Int32Array) -> None:
        """Add a reference to each of `pages` (distinct); evictable ones leave the queue."""
        idle = pages[self.refs[pages] == 0]
        if len(idle):
            self.evictable.remove(idle)
        self.refs[pages] += np.int32(1)

    def share(self, pages: Int32Array) -> None:
        """Add a reference per mention; every page is in use already."""
        np.add.at(self.refs, pages, np.int32(1))

    def drop(self, pages: Int32Array) -> NDArray[np.intp]:
        """Take one reference away per mention (a page may be mentioned several times).

        Returns:
            Indices into `pages` of those that nobody holds any more, each at its first mention.
            They are in limbo until `settle` takes them.
        """
        np.subtract.at(self.refs, pages, np.int32(1))
        idle = np.flatnonzero(self.refs[pages] == 0)
        self._mention[pages[idle][::-1]] = idle[::-1]
        return idle[self._mention[pages[idle]] == idle]

    def settle(self, idle: Int32Array) -> None:
        """File pages that nobody holds: published ones as most recently used, others as blank."""
        known = self.published[idle]
        if known.any():
            self.evictable.append(idle[known])
            idle = idle[~known]
        self._blank[self._num_blank : self._num_blank + len(idle)] = idle
        self._num_blank += len(idle)

    def forget_all(self) -> None:
        """Nothing is cached any more: evictable pages become blank."""
        self.published[:] = False
        self.settle(self.evictable.pop(len(self.evictable)))
