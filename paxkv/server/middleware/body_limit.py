"""BodyLimit: request bodies of bounded size that arrive in bounded time."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paxkv.server.errors import (
    ApiError,
    BodyOverdue,
    Overloaded,
    TooLarge,
    UnsupportedCoding,
)
from paxkv.server.value_count import ValueCount

PIECE = 64 * 1024


class BodyLimit:
    """Reads a body before the application sees the request.

    max_bytes: of the body. max_values: as `ValueCount` counts them. max_seconds: until it is there.
    max_held: bytes of the bodies of all requests that have no answer yet.
    """

    def __init__(
        self, app: ASGIApp, max_bytes: int, max_values: int, max_seconds: float, max_held: int
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_values = max_values
        self._max_seconds = max_seconds
        self._max_held = max_held
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = bytearray()
        try:
            first = await self._read(scope, receive, body)
            if first is not None:
                await self._app(scope, _after(first, receive), send)
        except ApiError as error:  # of reading; the application tells its own
            response = error.response()
            response.headers["Connection"] = "close"
            await response(scope, receive, send)
        finally:
            self._held -= len(body)

    async def _read(self, scope: Scope, receive: Receive, body: bytearray) -> Message | None:
        """The whole body as one message, None if the client went; `body` is what is held."""
        headers = dict(scope["headers"])
        declared = int(headers.get(b"content-length", b"0"))
        if declared > self._max_bytes:
            raise self._too_large()
        coding = headers.get(b"content-encoding", b"").strip()
        if coding.lower() not in (b"", b"identity") and (
            declared or b"transfer-encoding" in headers
        ):
            raise UnsupportedCoding(coding.decode("latin-1"))
        values = ValueCount()
        try:
            async with asyncio.timeout(self._max_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    part = message.get("body", b"")
                    self._held += len(part)
                    body += part
                    if self._held > self._max_held:
                        raise Overloaded(
                            f"bodies of more than max_held_bytes={self._max_held} wait for answers",
                            code="bodies_full",
                            retry_after=1,
                        )
                    if len(body) > self._max_bytes:
                        raise self._too_large()
                    await self._count(values, part)
                    if not message.get("more_body"):
                        # Not before: a client that still sends may not read what it is told.
                        if values.count > self._max_values:
                            raise TooLarge(
                                f"the body holds more than max_body_values={self._max_values}"
                            )
                        return {"type": "http.request", "body": bytes(body), "more_body": False}
        except TimeoutError:
            raise BodyOverdue(
                f"the body was not there within max_body_seconds={self._max_seconds:g}"
            ) from None

    async def _count(self, values: ValueCount, part: bytes) -> None:
        for start in range(0, len(part), PIECE):
            if values.count <= self._max_values:
                values.add(part[start : start + PIECE])
                await asyncio.sleep(0)  # others' turn

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the body is larger than max_body_bytes={self._max_bytes}")


def _after(first: Message, receive: Receive) -> Receive:
    """`receive`, with a message before its others."""
    pending = [first]

    async def next_message() -> Message:
        return pending.pop() if pending else await receive()

    return next_message
