"""Answers: the result of a request as one JSON document or as a stream of events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import closing, suppress
from typing import Any, Protocol, TypeVar

from fastapi import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from paxkv.outputs import RequestOutput
from paxkv.server.deltas import Piece
from paxkv.server.errors import ApiError, ClientGone, note_error
from paxkv.server.grammar.queue import NotCompiled
from paxkv.server.pending_request import PendingRequest
from paxkv.server.schemas import GenerationBody
from paxkv.server.service import Service

T = TypeVar("T")

_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class Format(Protocol):
    """Format of a route's results."""

    def whole(self, outputs: list[RequestOutput]) -> dict[str, Any]: ...

    def chunks(self, piece: Piece) -> list[dict[str, Any]]: ...

    def usage_chunk(self) -> dict[str, Any]: ...


def to_json(value: Any) -> bytes:
    """Encode as UTF-8. A lone surrogate, which a model may write in a call, stays escaped."""
    return _JSON.encode(value).encode(errors="backslashreplace")


def json_response(value: Any) -> Response:
    return Response(to_json(value), media_type="application/json")


async def answer(
    service: Service, http: HttpRequest, body: GenerationBody, call: PendingRequest, form: Format
) -> Response:
    """The response to a submitted request, which is aborted if the client disconnects.

    A stream begins when the engine does, so that what is refused before gets its status.
    """
    try:
        if body.stream:
            await unless_gone(http.receive, call.start())
            usage, always = body.wants_usage_chunk, body.wants_usage_always
            return EventStream(call, chunks(call, form, usage=usage, always=always))
        requests = await unless_gone(http.receive, call.finish())
        content = await service.work(lambda: to_json(form.whole([r.output() for r in requests])))
    except BaseException:
        call.close()
        raise
    call.close()
    return Response(content, media_type="application/json")


async def prepared(service: Service, http: HttpRequest, make: Callable[[], T]) -> T:
    """Call `make` in a worker thread, and again once a grammar that it lacks is compiled;
    return its result, unless the client disconnects meanwhile."""
    while True:
        try:
            return await service.work(make)
        except NotCompiled as missing:
            form = missing.form
        await unless_gone(http.receive, service.grammar_queue.compile(form))


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; cancel it and raise ClientGone if the client disconnects."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone("the client closed the connection")
        return task.result()
    finally:
        for each in (task, watch):
            each.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events of a request, which is closed at their end or on disconnect."""

    media_type = "text/event-stream"

    def __init__(self, call: PendingRequest, events: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._call = call
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientGone), closing(self._call):
            await unless_gone(receive, self._tell(send))
        if self._call.error is not None:
            note_error(scope, self._call.error)

    async def _tell(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for event in self._events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def chunks(
    call: PendingRequest, form: Format, *, usage: bool, always: bool = False
) -> AsyncIterator[bytes]:
    """Yield the events of a request's chunks, then `[DONE]`.

    usage: whether one more chunk tells it. always: whether every chunk does.
    """
    try:
        async for pieces in call.pieces():
            new = [chunk for piece in pieces for chunk in _chunks(form, piece, always)]
            if new:
                yield b"".join(map(event, new))
        if usage:
            yield event(form.usage_chunk())
    except ApiError as error:
        yield b"data: " + error.json().encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def _chunks(form: Format, piece: Piece, usage: bool) -> list[dict[str, Any]]:
    found = form.chunks(piece)
    if not usage or not found:
        return found
    so_far = form.usage_chunk()["usage"]
    return [{**chunk, "usage": so_far} for chunk in found]


def event(value: dict[str, Any]) -> bytes:
    return b"data: " + to_json(value) + b"\n\n"
