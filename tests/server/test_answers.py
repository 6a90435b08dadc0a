"""Streams, without a server: cancelling them at the worst moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from paxkv.server.answers import EventStream, chunks

MANY = 500


class LongCall:
    error = None
    closed = False
    told = 0

    async def pieces(self) -> AsyncIterator[list[int]]:
        while self.told < MANY:
            self.told += 1
            yield [1]
            await asyncio.sleep(0)

    def close(self) -> None:
        self.closed = True


class Form:
    def chunks(self, piece: int) -> list[dict[str, Any]]:
        return [{"piece": piece}]


def test_a_stream_ends_when_the_client_goes_as_a_piece_is_sent() -> None:
    """asyncio.wait_for of Python 3.11 loses a cancellation that comes just then."""

    async def run(turns: int) -> bool:
        gone = asyncio.Event()
        call = LongCall()
        stream = EventStream(call, chunks(call, Form(), usage=False))  # type: ignore[arg-type]

        async def receive() -> Any:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                gone.set()
                for _ in range(turns):
                    await asyncio.sleep(0)

        await stream({"type": "http"}, receive, send)
        return call.closed and call.told < MANY

    assert all(asyncio.run(run(turns)) for turns in range(6))
