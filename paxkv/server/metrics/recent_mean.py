"""RecentMean: mean over the last seconds."""

from __future__ import annotations

from collections import deque


class RecentMean:
    """Mean over a sliding window, kept by the second.

    window: seconds.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._seconds: deque[tuple[int, float, int]] = deque()

    def add(self, value: float, time: float) -> None:
        second, total, count = int(time), value, 1
        if self._seconds and self._seconds[-1][0] == second:
            _, before, number = self._seconds.pop()
            total, count = before + value, number + 1
        self._seconds.append((second, total, count))
        self._forget(time)

    def mean(self, time: float) -> float:
        """Mean of the window; 0 if it is empty."""
        self._forget(time)
        count = sum(number for _, _, number in self._seconds)
        return sum(total for _, total, _ in self._seconds) / count if count else 0.0

    def _forget(self, time: float) -> None:
        while self._seconds and self._seconds[0][0] <= time - self._window - 1:
            self._seconds.popleft()
