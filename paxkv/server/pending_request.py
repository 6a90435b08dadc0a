"""PendingRequest: the engine requests of one HTTP call, awaited by asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from paxkv.engine.request import Request
from paxkv.server.deltas import Deltas, Piece
from paxkv.server.errors import ApiError, BadRequest, EngineFault


class PendingRequest:
    """Waits for its requests; closing it early aborts them.

    Unread output is kept as pieces, at most the whole answer: a slow reader costs memory up to
    that and delays no other client. All methods are for the event loop's thread.

    streaming: whether pieces are wanted; otherwise only the finished requests are.
    """

    def __init__(
        self, requests: Sequence[Request], streaming: bool, close: Callable[[PendingRequest], None]
    ) -> None:
        self.requests = list(requests)
        self.streaming = streaming
        self.started = False
        self.unfinished = {request.request_id for request in requests}
        self.timers: list[asyncio.TimerHandle] = []
        self._close = close
        self._pieces: list[Piece] = []
        self._error: ApiError | None = None
        self._changed = asyncio.Event()

    # Told by the engine's loop

    def take(self, deltas: Deltas) -> None:
        self.started = True
        self._pieces += deltas.pieces
        if deltas.ended is not None:
            self.unfinished.discard(deltas.request.request_id)
            if deltas.request.error is not None:
                self._error = self._error or failure(deltas.request)
        self._changed.set()

    def fail(self, error: ApiError) -> None:
        """End the wait for all results that are still missing."""
        if self.unfinished and self._error is None:
            self._error = error
            self._changed.set()

    # For the code that answers

    async def start(self) -> None:
        """Wait until a first request has been scheduled. Raises ApiError if that cannot be."""
        while not self.started:
            await self._news()
        self._check()

    async def finish(self) -> list[Request]:
        """All requests, finished. Raises ApiError if one fails."""
        while self.unfinished:
            await self._news()
        self._check()
        return self.requests

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """Yield new pieces until the end. Raises ApiError after the pieces that came before it."""
        while True:
            new, self._pieces = self._pieces, []
            if new:
                yield new
            elif self.unfinished:
                await self._news()
            else:
                self._check()
                return

    async def _news(self) -> None:
        self._check()
        self._changed.clear()
        await self._changed.wait()
        if not self._pieces:
            self._check()

    @property
    def error(self) -> ApiError | None:
        """The error that ends it early, None without one."""
        return self._error

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop waiting; abort unfinished requests."""
        self._close(self)


def failure(request: Request) -> ApiError:
    """The error of a failed request. Edits of the logits can leave nothing to sample."""
    assert request.error is not None
    params = request.sampling_params
    edits = (
        params.has_penalty,
        params.logit_bias,
        params.bad_words,
        params.allowed_token_ids,
        params.structured_outputs,
    )
    if any(edits) and request.error.startswith("no token could be sampled"):
        return BadRequest(request.error)
    return EngineFault(request.error)
