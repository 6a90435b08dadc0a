"""Traffic: time series of the dashboard that the engine does not keep."""

from __future__ import annotations

from collections import deque

from paxkv.engine.request import Request
from paxkv.server.deltas import Deltas

KEPT_FIRST_TOKENS = 256


class Traffic:
    """An observer of the engine's loop, in the event loop's thread.

    generated: tokens sampled so far. computed: tokens of all steps so far, prompts included.
    first_tokens: of the last requests, when the first token came (seconds of `time.monotonic`) and
        how long it took (seconds), the newest last.
    num_first_tokens: how many there have been.
    """

    def __init__(self) -> None:
        self.generated = 0
        self.computed = 0
        self.num_first_tokens = 0
        self.first_tokens: deque[tuple[float, float]] = deque(maxlen=KEPT_FIRST_TOKENS)
        self._begun: set[str] = set()

    def arrived(self, request: Request) -> None:
        pass

    def stepped(self, num_tokens: int) -> None:
        self.computed += num_tokens

    def advanced(self, deltas: Deltas) -> None:
        request = deltas.request
        self.generated += deltas.num_tokens
        if deltas.num_tokens and request.request_id not in self._begun:
            self._begun.add(request.request_id)
            took = deltas.first_token - request.arrival_time
            self.first_tokens.append((deltas.first_token, took))
            self.num_first_tokens += 1
        if deltas.ended is not None:
            self._begun.discard(request.request_id)

    def aborted(self, request: Request) -> None:
        self._begun.discard(request.request_id)
