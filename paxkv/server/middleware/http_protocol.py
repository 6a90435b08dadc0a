"""PatientProtocol: uvicorn's HTTP/1.1 with timeouts and a connection limit."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from paxkv.server.errors import ApiError, BadRequest, HeadersTooLarge
from paxkv.server.limits import RequestLimits

READ_BYTES = 8 * 1024


class PatientProtocol(H11Protocol):
    """Closes connections whose client keeps the server waiting, and those beyond
    max_connections.

    Headers, and the rest of a body that is not read any more, have max_header_seconds. A client
    that reads nothing has max_reader_stall_seconds, or up to twice that, even while the connection
    is being closed. A client may send max_header_bytes ahead of the answer.
    """

    limits = RequestLimits()
    refused: Sequence[Callable[[ApiError], None]] = ()
    _overdue: asyncio.TimerHandle | None = None
    _next_look: asyncio.TimerHandle | None = None
    _left: int | None = None

    @classmethod
    def limited(
        cls, limits: RequestLimits, refused: Sequence[Callable[[ApiError], None]] = ()
    ) -> type[PatientProtocol]:
        """refused: called with each error that answers what is no request."""
        return type("LimitedProtocol", (cls,), {"limits": limits, "refused": refused})

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # asyncio reads 256 KiB at once; in chunks of a byte each they take a second to parse.
        if hasattr(transport, "max_size"):
            transport.max_size = READ_BYTES
        if len(self.connections) > self.limits.max_connections:
            transport.close()
            return
        self._expect()
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.DONE:
            self._keep_reading()
        if self.conn.their_state is h11.IDLE or self._ignores_body:
            self._expect()
        else:
            self._expect_nothing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._left = None
        if self._ignores_body or (self.conn.their_state is h11.IDLE and self._early_bytes):
            self._expect()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()  # an answer is on its way already
            return
        error = self._refusal(msg)
        for observer in self.refused:
            observer(error)
        headers = [*error.response().raw_headers, (b"connection", b"close")]
        reason = HTTPStatus(error.status).phrase.encode()
        for event in (
            h11.Response(status_code=error.status, headers=headers, reason=reason),
            h11.Data(data=error.json().encode()),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def _refusal(self, msg: str) -> ApiError:
        """Error object for the parser's error that is being handled."""
        error = sys.exc_info()[1]
        if (
            self.conn.our_state is h11.IDLE
            and isinstance(error, h11.RemoteProtocolError)
            and error.error_status_hint == HeadersTooLarge.status
        ):
            return HeadersTooLarge(self.limits.max_header_bytes)
        return BadRequest(msg if error is None else f"this is not a request: {error}")

    def _unsupported_upgrade_warning(self) -> None:
        """An upgrade may be ignored (RFC 9110, 7.8), and clients that know HTTP/2 ask for it with
        every request."""

    def resume_writing(self) -> None:
        super().resume_writing()
        self._left = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        if self._next_look is not None:
            self._next_look.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Abort the connection if the client has read nothing since the last check."""
        left = self.transport.get_write_buffer_size()
        if left and left == self._left:
            self.transport.abort()
            return
        writing = self.cycle is not None and not self.cycle.response_complete
        waits = self.flow.write_paused or self.transport.is_closing() or not writing
        self._left = left if waits else None
        self._next_look = self.loop.call_later(self.limits.max_reader_stall_seconds, self._look)

    @property
    def _early_bytes(self) -> int:
        """Bytes of the next request that have arrived early."""
        return len(self.conn.trailing_data[0])

    def _keep_reading(self) -> None:
        """Keep what arrives before the answer. uvicorn would stop reading here, and so miss a
        disconnect."""
        if self._early_bytes > self.limits.max_header_bytes:
            self.transport.abort()
        else:
            self.flow.resume_reading()

    @property
    def _ignores_body(self) -> bool:
        """Whether the answer was given before the end of the body."""
        return self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE

    def _expect(self) -> None:
        if self._overdue is None:
            seconds = self.limits.max_header_seconds
            self._overdue = self.loop.call_later(seconds, self.transport.close)

    def _expect_nothing(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
