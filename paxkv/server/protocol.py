"""PatientProtocol: uvicorn's HTTP/1.1, with an end to its patience."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class PatientProtocol(H11Protocol):
    """Closes a connection whose request headers do not come within `header_seconds`, and those
    beyond `max_connections`."""

    header_seconds = 10.0
    max_connections = 4096
    _deadline: asyncio.TimerHandle | None = None

    @classmethod
    def limited(cls, header_seconds: float, max_connections: int) -> type[PatientProtocol]:
        limits = {"header_seconds": header_seconds, "max_connections": max_connections}
        return type("LimitedProtocol", (cls,), limits)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            transport.close()
            return
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait_for_headers()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_headers(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.header_seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
