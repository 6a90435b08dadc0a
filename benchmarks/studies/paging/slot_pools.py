"""Allocators of contiguous runs of token slots: first fit, and binary buddies."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Protocol


class SlotPool(Protocol):
    """A fixed number of slots, given out in contiguous runs."""

    num_slots: int

    def rounded(self, count: int) -> int:
        """Slots that a run of `count` really takes."""
        ...

    def allocate(self, count: int) -> int | None:
        """First slot of a run of at least `count`, or None if there is none."""
        ...

    def release(self, start: int) -> None:
        """Give back the run that starts at `start`."""
        ...


class FirstFitPool:
    """Takes the first gap that is long enough; neighboring gaps merge."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._gaps: list[tuple[int, int]] = [(0, num_slots)]
        self._taken: dict[int, int] = {}

    def rounded(self, count: int) -> int:
        return count

    def allocate(self, count: int) -> int | None:
        for place, (start, stop) in enumerate(self._gaps):
            if stop - start >= count:
                if stop - start == count:
                    del self._gaps[place]
                else:
                    self._gaps[place] = (start + count, stop)
                self._taken[start] = count
                return start
        return None

    def release(self, start: int) -> None:
        stop = start + self._taken.pop(start)
        place = bisect_left(self._gaps, (start, stop))
        if place < len(self._gaps) and self._gaps[place][0] == stop:
            stop = self._gaps.pop(place)[1]
        if place and self._gaps[place - 1][1] == start:
            start = self._gaps.pop(place - 1)[0]
        insort(self._gaps, (start, stop))


class BuddyPool:
    """Runs of powers of two, each at a multiple of its size; free halves merge again.

    A pool that is no power of two is a row of blocks, the largest first.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free: dict[int, list[int]] = {}
        self._tops: dict[int, int] = {}
        self._taken: dict[int, int] = {}
        start = 0
        while start < num_slots:
            size = 1 << ((num_slots - start).bit_length() - 1)
            self._tops[start] = size
            self._add(size, start)
            start += size

    def rounded(self, count: int) -> int:
        return 1 << (count - 1).bit_length()

    def allocate(self, count: int) -> int | None:
        wanted = self.rounded(count)
        fitting = [size for size, starts in self._free.items() if starts and size >= wanted]
        if not fitting:
            return None
        size = min(fitting)
        start = self._free[size].pop(0)
        while size > wanted:
            size //= 2
            self._add(size, start + size)
        self._taken[start] = size
        return start

    def release(self, start: int) -> None:
        size = self._taken.pop(start)
        while self._tops.get(start) != size:
            buddy = start ^ size
            starts = self._free.get(size, [])
            place = bisect_left(starts, buddy)
            if place == len(starts) or starts[place] != buddy:
                break
            del starts[place]
            start, size = min(start, buddy), size * 2
        self._add(size, start)

    def _add(self, size: int, start: int) -> None:
        insort(self._free.setdefault(size, []), start)
