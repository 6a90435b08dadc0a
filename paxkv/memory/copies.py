"""Page copies that the next device step must make before anything is written."""

from __future__ import annotations

import numpy as np

from paxkv.memory.pool import Int32Array


class PendingCopies:
    """Copies `source -> target` between pages, collected until a step takes them.

    The device reads every source before it writes any target, and writes KV after that. A
    source is therefore always a page as it was before the step, and a copy whose target was
    given back in the meantime is dropped.
    """

    def __init__(self, num_pages: int) -> None:
        self._source: Int32Array = np.zeros(num_pages + 1, np.int32)
        self._readers: Int32Array = np.zeros(num_pages + 1, np.int32)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, sources: Int32Array, targets: Int32Array) -> None:
        """Add copies; `targets` are distinct pages just taken from the pool."""
        origin = self._source[sources]
        sources = np.where(origin > 0, origin, sources)
        self._source[targets] = sources
        np.add.at(self._readers, sources, np.int32(1))
        self._count += len(targets)

    def cancel(self, targets: Int32Array) -> int:
        """Drop the copies into `targets` (distinct), where there are any; returns how many."""
        targets = targets[self._source[targets] > 0]
        np.subtract.at(self._readers, self._source[targets], np.int32(1))
        self._source[targets] = 0
        self._count -= len(targets)
        return len(targets)

    def writes(self, pages: Int32Array) -> bool:
        """Whether a pending copy leads into any of `pages`."""
        return bool(self._count and self._source[pages].any())

    def read_from(self, pages: Int32Array) -> Int32Array:
        """Those of `pages` that a pending copy reads."""
        return pages[self._readers[pages] > 0]

    def targets_of(self, source: int) -> Int32Array:
        """Pages that `source` is to be copied into, ascending."""
        return np.flatnonzero(self._source == source).astype(np.int32)

    def pairs(self) -> tuple[Int32Array, Int32Array]:
        """All pending copies as `(sources, targets)`."""
        targets = np.flatnonzero(self._source).astype(np.int32)
        return self._source[targets], targets

    def take(self) -> tuple[Int32Array, Int32Array]:
        """`pairs`, which are then no longer pending."""
        if not self._count:
            empty = np.zeros(0, np.int32)
            return empty, empty
        sources, targets = self.pairs()
        self._source[targets] = 0
        self._readers[sources] = 0
        self._count = 0
        return sources, targets
