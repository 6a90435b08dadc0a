"""Backlog: bounds on the queue of the engine."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from paxkv.engine.request import Request
from paxkv.server.errors import Overloaded


@dataclass(slots=True)
class _Waiting:
    """A request without a slot. seen: whether a step has been scheduled while it was there."""

    sequences: int
    tokens: int
    since: float = field(default_factory=time.monotonic)
    seen: bool = False


class Backlog:
    """Counts the sequences that wait for the engine, n for a request with n answers, and refuses
    those beyond its limits.

    A request that will find a free slot in the next step does not count as waiting, unless the last
    step left both slots free and requests waiting: then pages or the step's tokens are short.

    max_sequences: limit of waiting sequences. max_tokens: limit of their prompt tokens; None for
    none. slots: sequences that the engine runs at once.
    """

    def __init__(self, max_sequences: int | None, max_tokens: int | None, slots: int) -> None:
        self._max_sequences = max_sequences
        self._max_tokens = max_tokens
        self._slots = slots
        self._waiting: dict[str, _Waiting] = {}
        self._started: dict[str, int] = {}
        self._short = False
        self._num_sequences = 0
        self.num_tokens = 0

    @property
    def num_requests(self) -> int:
        """Requests without a slot."""
        return len(self._waiting)

    @property
    def retry_after(self) -> int:
        """Whole seconds for Retry-After: the time that the first in the queue has waited."""
        first = next(iter(self._waiting.values()), None)
        return 1 if first is None else max(1, math.ceil(time.monotonic() - first.since))

    def enter(self, requests: Sequence[Request]) -> None:
        """Count requests as waiting, all of them. Raises Overloaded if they exceed a limit.

        Requests that exceed a limit by themselves may still wait if the queue is empty.
        """
        before = self._queued()
        for request in requests:
            self._add(request)
        for name, limit, waiting, all_waiting in zip(
            ("max_num_queued_reqs", "max_num_queued_tokens"),
            (self._max_sequences, self._max_tokens),
            before,
            self._queued(),
        ):
            if limit is not None and waiting and all_waiting > limit:
                for request in requests:
                    self._remove(request)
                raise Overloaded(
                    f"too much is waiting already: {name}={limit}, {waiting} queued, "
                    f"{all_waiting - waiting} more asked for; try again later",
                    code="queue_full",
                    retry_after=self.retry_after,
                )

    def _queued(self) -> tuple[int, int]:
        """Sequences, and tokens of their prompts, that the next step does not start."""
        sequences, tokens = self._num_sequences, self.num_tokens
        if self._short:
            return sequences, tokens
        free = self._free
        for waiting in self._waiting.values():
            if waiting.sequences > free:
                break
            free -= waiting.sequences
            sequences -= waiting.sequences
            tokens -= waiting.tokens
        return sequences, tokens

    def _add(self, request: Request) -> None:
        waiting = _Waiting(request.sampling_params.children, request.num_prompt)
        self._waiting[request.request_id] = waiting
        self._num_sequences += waiting.sequences
        self.num_tokens += waiting.tokens

    def _remove(self, request: Request) -> _Waiting | None:
        waiting = self._waiting.pop(request.request_id, None)
        if waiting is not None:
            self._num_sequences -= waiting.sequences
            self.num_tokens -= waiting.tokens
        return waiting

    @property
    def _free(self) -> int:
        return self._slots - sum(self._started.values())

    def stepped(self, running: Iterable[Request], added: Iterable[Request]) -> None:
        """Note a scheduled step: `running` have slots, and `added` were new.

        Call it before `leave` of requests that have ended since.
        """
        for request in running:
            waiting = self._remove(request)
            if waiting is not None:
                self._started[request.request_id] = waiting.sequences
        for request in added:
            if request.request_id in self._waiting:
                self._waiting[request.request_id].seen = True
        first = next(iter(self._waiting.values()), None)
        self._short = first is not None and first.seen and first.sequences <= self._free

    def leave(self, request: Request) -> None:
        """Stop counting a request that has ended or was aborted."""
        self._remove(request)
        self._started.pop(request.request_id, None)
