"""POST /v1/responses, and the responses that are kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from starlette.responses import Response

from paxkv.server.answers import EventStream, json_response, prepared, to_json, unless_gone
from paxkv.server.errors import BadRequest, NotFound
from paxkv.server.middleware.auth import caller
from paxkv.server.pending_request import PendingRequest
from paxkv.server.responses.body import ResponseBody, own_names
from paxkv.server.responses.object import ResponseObject, encoded
from paxkv.server.responses.turn import ResponseTurn, read_turn
from paxkv.server.service import Service
from paxkv.validation import shown

ONE = "/v1/responses/{response_id}"


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/responses", response_model=None)
    async def create(body: ResponseBody, http: HttpRequest) -> Response:
        """Answer an input, or the next turn of a stored conversation."""
        service.loop.check()
        service.check_model(body.model)
        body.refuse_unsupported()
        owner = _owner(http)
        with own_names():
            turn = await prepared(service, http, lambda: read_turn(service, body, owner))
        told = ResponseObject(service, body, turn.chat, turn.tools, turn.request, turn.response_id)
        call = service.submit(turn.chat, [turn.request])
        try:
            if body.stream:
                await unless_gone(http.receive, call.start())
                return EventStream(call, _events(service, owner, turn, told, call))
            response = await unless_gone(http.receive, told.finished(call))
            await service.work(partial(_keep, service, owner, turn, response))
            content = await service.work(lambda: to_json(response))
        except BaseException:
            call.close()
            raise
        call.close()
        return Response(content, media_type="application/json")

    @router.get(ONE, response_model=None)
    async def retrieve(response_id: str, http: HttpRequest, stream: bool = False) -> Response:
        """A stored response."""
        if stream:
            raise BadRequest(
                "stream is not supported: a response is stored when it is complete",
                param="stream",
                code="unsupported",
            )
        found = service.responses.get(_owner(http), response_id)
        if found is None:
            raise _not_found(response_id)
        return Response(found, media_type="application/json")

    @router.delete(ONE, response_model=None)
    async def delete(response_id: str, http: HttpRequest) -> Response:
        """Delete a stored response; those that continue it stay intact."""
        if not service.responses.delete(_owner(http), response_id):
            raise _not_found(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    return router


def _owner(http: HttpRequest) -> bytes:
    return caller(http.headers.get("authorization", "").encode("latin-1"))


def _not_found(response_id: str) -> NotFound:
    return NotFound(
        f"Response with id {shown(response_id)} not found.",
        param="response_id",
        code="response_not_found",
    )


def _keep(service: Service, owner: bytes, turn: ResponseTurn, response: dict[str, Any]) -> None:
    """Store a response before its last event, so that the client can continue it at once."""
    if response["store"] and response["status"] != "failed":
        new = turn.added(response["output"])
        service.responses.add(owner, response, new, before=turn.before)


async def _events(
    service: Service, owner: bytes, turn: ResponseTurn, told: ResponseObject, call: PendingRequest
) -> AsyncIterator[bytes]:
    async for event in told.events(call):
        response = event.get("response")
        if response is not None and response["status"] != "in_progress":
            await service.work(partial(_keep, service, owner, turn, response))
        yield encoded(event)
