"""A memory-mapped file whose pages are given back once they have been read."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np


class MappedFile:
    """Read-only bytes of `path`.

    Pages of the map count as resident memory of the process, so readers call `release` after each
    piece; a later read of the same bytes finds them in the page cache or reads them again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb") as file:
            self.size = file.seek(0, 2)
            if self.size == 0:
                raise ValueError(f"{path} is empty")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __getitem__(self, span: slice) -> bytes:
        return self._map[span]

    def view(self, offset: int, count: int) -> np.ndarray:
        """uint8 view [count] of the bytes from `offset`, no copy."""
        return np.frombuffer(self._map, dtype=np.uint8, count=count, offset=offset)

    def release(self, offset: int, count: int) -> None:
        """Let the system drop the pages of these bytes from this process."""
        if not hasattr(mmap, "MADV_DONTNEED") or count <= 0:
            return
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, start, min(offset + count, self.size) - start)
