"""Holding prompts back for a moment, so that more of them start together."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from paxkv.engine.sequence import Sequence


class PromptDelay:
    """vLLM's `scheduler_delay_factor`: while others run, no prompt is admitted before the oldest
    that waits has waited longer than `factor` times what the last step with a prompt took.

    clock: seconds, on the scale of `Request.arrival_time`.
    latency: seconds of that step, 0 before there was one.
    """

    def __init__(self, factor: float, clock: Callable[[], float]) -> None:
        self._factor = factor
        self._clock = clock
        self.latency = 0.0
        self._last_end = float("-inf")

    def ended(self, start: float, had_prompt: bool) -> None:
        """A step scheduled at `start` is over; the device began it when the one before ended."""
        now = self._clock()
        if had_prompt:
            self.latency = now - max(start, self._last_end)
        self._last_end = now

    def holds_back(self, waiting: Iterable[Sequence]) -> bool:
        if not self._factor or not self.latency:
            return False
        oldest = min(sequence.request.arrival_time for sequence in waiting)
        return self._clock() - oldest <= self._factor * self.latency
