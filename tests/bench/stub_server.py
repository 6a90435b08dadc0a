"""A server that answers in OpenAI's format after delays it is told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web


class StubServer:
    """delays: seconds before each piece of an answer. bodies: what was asked. running, most: how
    many requests there are, and were, at once. refuse: bodies for which the answer is a 503."""

    def __init__(self, delays: tuple[float, ...]) -> None:
        self.delays = delays
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.running = self.most = 0
        self.refuse = lambda body: False
        self.cut = lambda body: False
        self.port = 0

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "stub"}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(request.headers)
        if self.refuse(body):
            return web.json_response({"error": {"message": "full"}}, status=503)
        self.running += 1
        self.most = max(self.most, self.running)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        chat = request.path.endswith("/chat/completions")
        if chat:
            await self._send(response, {"choices": [{"delta": {"role": "assistant"}}]})
        for place, delay in enumerate(self.delays):
            await asyncio.sleep(delay)
            text = f"w{place} "
            piece = {"delta": {"content": text}} if chat else {"text": text}
            await self._send(response, {"choices": [piece]})
        self.running -= 1
        if not self.cut(body):
            usage = {"prompt_tokens": 11, "completion_tokens": len(self.delays)}
            await self._send(response, {"choices": [], "usage": usage})
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    @staticmethod
    async def _send(response: web.StreamResponse, value: Any) -> None:
        await response.write(b"data: " + json.dumps(value).encode() + b"\n\n")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def stub_server(*delays: float) -> Iterator[StubServer]:
    """A running one, in a thread of its own."""
    stub = StubServer(delays)
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/v1/models", stub.models)
        app.router.add_post("/v1/completions", stub.complete)
        app.router.add_post("/v1/chat/completions", stub.complete)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        stub.port = runner.addresses[0][1]
        ready.set()
        await asyncio.to_thread(over.wait)
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    try:
        yield stub
    finally:
        over.set()
        thread.join(20)
