"""The page pool: reference counts, free pages, evictable pages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class PagePool:
    """Pages 1..num_pages; page 0 is the padding page and is never given out.

    A page is in exactly one state: used (`refs > 0`), evictable (no reference, but the prefix
    cache knows its content) or free. Free pages are given out before any is evicted.

    Attributes:
        refs: `[num_pages + 1]` int32, table cells that name the page.
        cached: `[num_pages + 1]` bool, pages the prefix cache knows.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.refs: Int32Array = np.zeros(num_pages + 1, np.int32)
        self.cached: NDArray[np.bool_] = np.zeros(num_pages + 1, np.bool_)
        self.evictable = EvictionQueue(num_pages)
        self._free = np.arange(num_pages, 0, -1, dtype=np.int32)
        self._num_free = num_pages
        self._mention = np.zeros(num_pages + 1, np.intp)

    @property
    def num_available(self) -> int:
        """Pages that `take` can give: free and evictable."""
        return self._num_free + len(self.evictable)

    @property
    def num_free(self) -> int:
        return self._num_free

    def free_pages(self) -> Int32Array:
        """Free pages, the next one to be given out last."""
        return self._free[: self._num_free].copy()

    def room_beside(self, pinned: Int32Array) -> int:
        """Free pages left once the pages `pinned` (distinct) are held."""
        return self.num_available - int(np.count_nonzero(self.refs[pinned] == 0))

    def take(self, count: int) -> tuple[Int32Array, Int32Array]:
        """Give out `count` pages with one reference each.

        Returns:
            The pages, and those among them that were evicted: the caller must drop their
            entries from the prefix cache (`cached` is cleared here).
        """
        if count > self.num_available:
            raise ValueError(f"count is {count}; only {self.num_available} pages are free")
        from_free = min(count, self._num_free)
        self._num_free -= from_free
        pages = self._free[self._num_free : self._num_free + from_free][::-1].copy()
        evicted = pages[:0]
        if count > from_free:
            evicted = self.evictable.pop(count - from_free)
            self.cached[evicted] = False
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
            Indices into `pages` of those without a reference now, each at its first mention. They
            are in no state until `settle` files them.
        """
        np.subtract.at(self.refs, pages, np.int32(1))
        idle = np.flatnonzero(self.refs[pages] == 0)
        self._mention[pages[idle][::-1]] = idle[::-1]
        return idle[self._mention[pages[idle]] == idle]

    def settle(self, idle: Int32Array) -> None:
        """File pages without references: cached ones as most recently used, others as free."""
        known = self.cached[idle]
        if known.any():
            self.evictable.append(idle[known])
            idle = idle[~known]
        self._free[self._num_free : self._num_free + len(idle)] = idle
        self._num_free += len(idle)

    def forget_all(self) -> None:
        """Forget all cached pages: evictable ones become free."""
        self.cached[:] = False
        self.settle(self.evictable.pop(len(self.evictable)))


Int32Array = NDArray[np.int32]


class EvictionQueue:
    """Pages in least-recently-used order, as arrays.

    `append`, `remove` (from the middle too) and `pop` cost O(1) amortized per page and take
    whole arrays: removing a page only clears its place, and the hole is skipped later.
    """

    def __init__(self, num_pages: int) -> None:
        self._queue = np.zeros(2 * num_pages + 2, np.int32)
        self._place = np.full(num_pages + 1, -1, np.int64)
        self._head = 0
        self._tail = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, pages: Int32Array) -> None:
        """Put `pages` (distinct, none of them queued) at the recently used end, in order."""
        if self._tail + len(pages) > len(self._queue):
            self._close_holes()
        start, self._tail = self._tail, self._tail + len(pages)
        self._queue[start : self._tail] = pages
        self._place[pages] = np.arange(start, self._tail)
        self._count += len(pages)

    def remove(self, pages: Int32Array) -> None:
        """Take `pages` (distinct, all of them queued) out, wherever they stand."""
        self._place[pages] = -1
        self._count -= len(pages)

    def pop(self, count: int) -> Int32Array:
        """Remove and return the `count` least recently used pages, oldest first."""
        if count > self._count:
            raise ValueError(f"count is {count}; the queue holds {self._count} pages")
        found: list[Int32Array] = []
        missing = count
        while missing:
            if self._head == self._tail:
                raise RuntimeError(f"the queue counts {self._count} pages but lacks {missing}")
            stop = min(self._tail, self._head + max(missing, 64))
            window = self._queue[self._head : stop]
            standing = np.flatnonzero(self._place[window] == np.arange(self._head, stop))[:missing]
            found.append(window[standing])
            missing -= len(standing)
            self._head = stop if missing else self._head + int(standing[-1]) + 1
        pages = np.concatenate(found) if found else np.zeros(0, np.int32)
        self.remove(pages)
        return pages

    def pages(self) -> Int32Array:
        """All queued pages, least recently used first."""
        window = self._queue[self._head : self._tail]
        return window[self._place[window] == np.arange(self._head, self._tail)]

    def _close_holes(self) -> None:
        kept = self.pages()
        self._head, self._tail = 0, len(kept)
        self._queue[: self._tail] = kept
        self._place[kept] = np.arange(self._tail)
