"""TuneSchedule: how long a search for settings will take, told before and on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class TuneSchedule:
    """Counts the settings of a search and extrapolates from those that are done.

    count: settings to try. num_prompts: requests sent to each. request_rate: of them a second,
    inf for all at once.
    """

    def __init__(
        self,
        count: int,
        num_prompts: int,
        request_rate: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count = count
        self._num_prompts = num_prompts
        self._rate = request_rate
        self._clock = clock
        self._started = 0
        self._begin = 0.0

    @property
    def announcement(self) -> str:
        """What is to be done, and the least time it takes where the arrivals set one."""
        text = f"{self._count} settings to try, a server start and {self._num_prompts} requests "
        text += "each"
        if math.isfinite(self._rate):
            least = self._count * self._num_prompts / self._rate
            text += f": {_duration(least)} at least, by the request rate"
        return f"{text}; how long in all is told after the first"

    def next(self) -> str:
        """A heading for the setting that is tried now, with the time left where it is known."""
        now = self._clock()
        self._begin = self._begin if self._started else now
        done, self._started = self._started, self._started + 1
        text = f"{self._started} of {self._count}"
        if done:
            left = (now - self._begin) / done * (self._count - done)
            text += f", about {_duration(left)} left"
        return text


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
