"""Backlog: how much may wait for the engine."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from paxkv.engine.request import Request
from paxkv.server.errors import Overloaded


class Backlog:
    """Counts the requests that have not been scheduled yet, and refuses more than it may hold.

    max_requests: requests. max_tokens: of their prompts; None for no limit.
    """

    def __init__(self, max_requests: int | None, max_tokens: int | None) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._since: dict[str, float] = {}
        self.num_tokens = 0

    @property
    def num_requests(self) -> int:
        return len(self._since)

    @property
    def retry_after(self) -> int:
        """Whole seconds: as long as the first in the queue has been waiting."""
        oldest = next(iter(self._since.values()), None)
        return 1 if oldest is None else max(1, math.ceil(time.monotonic() - oldest))

    def enter(self, requests: Sequence[Request]) -> None:
        """All of them, or an Overloaded error.

        What is more than the limit by itself may still wait when nobody else does.
        """
        tokens = sum(request.num_prompt for request in requests)
        for name, limit, waiting, more in (
            ("max_num_queued_reqs", self._max_requests, self.num_requests, len(requests)),
            ("max_num_queued_tokens", self._max_tokens, self.num_tokens, tokens),
        ):
            if limit is not None and waiting and waiting + more > limit:
                raise Overloaded(
                    f"too much is waiting already: {name}={limit}, {waiting} queued, {more} more "
                    "asked for; try again later",
                    code="queue_full",
                    retry_after=self.retry_after,
                )
        now = time.monotonic()
        self._since.update((request.request_id, now) for request in requests)
        self.num_tokens += tokens

    def leave(self, request: Request) -> None:
        """It has been scheduled, or is gone."""
        if self._since.pop(request.request_id, None) is not None:
            self.num_tokens -= request.num_prompt
