"""The order in which cached pages that nobody uses are evicted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]


class EvictionQueue:
    """Pages in least-recently-used order, as arrays.

    `append`, `remove` (from the middle too) and `pop` cost O(1) amortised per page and take
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
