"""BodyLimit and HeaderLimit: requests of bounded size that arrive in bounded time."""

from __future__ import annotations

import asyncio
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paxkv.server.errors import (
    ApiError,
    BadRequest,
    BodyOverdue,
    HeadersTooLarge,
    Overloaded,
    TooLarge,
    UnsupportedCoding,
)

CONTAINER = 10
_ESCAPE = re.compile(rb"\\.", re.DOTALL)
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
        """Read the whole body as one message; None if the client disconnects. `body` holds it."""
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


class ValueCount:
    """Counts values in JSON that arrives in chunks.

    Parsing holds the interpreter's lock from start to end, for a time that depends on the number of
    values rather than on the bytes: a list, an object and each of its fields count as CONTAINER.
    The count of malformed JSON is arbitrary: the parser refuses it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._in_text = False
        self._left = b""

    def add(self, part: bytes) -> None:
        """Count a chunk. Raises BadRequest for UTF-16 and UTF-32, which would be miscounted."""
        if b"\0" in part:
            raise BadRequest("the body must be JSON in UTF-8, without NUL bytes")
        plain = _ESCAPE.sub(b"", self._left + part)
        self._left = b"\\" if plain.endswith(b"\\") else b""  # its other half is to come
        pieces = plain.split(b'"')
        outside = b"".join(pieces[self._in_text :: 2])
        if len(pieces) % 2 == 0:
            self._in_text = not self._in_text
        containers = outside.count(b"[") + outside.count(b"{") + outside.count(b":")
        self.count += outside.count(b",") + CONTAINER * containers


class HeaderLimit:
    """Refuses headers larger than `max_bytes`. The parser limits only incomplete headers, and
    those that arrive in one piece never are."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _size(scope) > self._max_bytes:
            await HeadersTooLarge(self._max_bytes).response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _size(scope: Scope) -> int:
    headers = sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"])
    return len(scope["path"]) + len(scope["query_string"]) + headers
