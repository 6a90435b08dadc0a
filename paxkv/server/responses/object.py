"""ResponseObject: an answer as OpenAI's response, whole or as a stream of events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from paxkv.engine.request import Request
from paxkv.server.answers import to_json
from paxkv.server.deltas import Piece
from paxkv.server.errors import ApiError, BadRequest, Overloaded
from paxkv.server.pending_request import PendingRequest
from paxkv.server.responses.body import ResponseBody
from paxkv.server.responses.output import ResponseOutput
from paxkv.server.routes.chat import ChatBody, answer_logprobs, chat_text
from paxkv.server.service import Service, usage
from paxkv.server.tools.definitions import Tools


class ResponseObject:
    """Builds a response from the pieces of a chat answer, the same streamed or not."""

    def __init__(
        self,
        service: Service,
        body: ResponseBody,
        chat: ChatBody,
        tools: Tools | None,
        request: Request,
        response_id: str,
    ) -> None:
        self._service = service
        self._chat = chat
        self._request = request
        self._reader = chat_text(service, chat, tools, request)
        self._output = ResponseOutput(body.wants_logprobs)
        self._num_tokens = 0
        self._num_events = 0
        self._told = _told_back(service, body, request, response_id)

    async def finished(self, call: PendingRequest) -> dict[str, Any]:
        """The response. Raises ApiError if there is none."""
        async for pieces in call.pieces():
            for piece in pieces:
                self._take(piece)
        return self._told

    async def events(self, call: PendingRequest) -> AsyncIterator[dict[str, Any]]:
        """Yield events as the answer arrives; the last one says how the response ended."""
        yield self._whole("created")
        yield self._whole("in_progress")
        try:
            async for pieces in call.pieces():
                for piece in pieces:
                    for event in self._take(piece):
                        yield self._numbered(event)
        except ApiError as error:
            self._output.abandon()
            self._told |= {"status": "failed", "output": self._output.items, "error": _error(error)}
        yield self._whole(self._told["status"])

    def _take(self, piece: Piece) -> list[dict[str, Any]]:
        self._num_tokens += len(piece.token_ids)
        logprobs = answer_logprobs(
            self._service, self._chat, self._request, piece.token_ids, piece.logprobs
        )
        if logprobs is not None:
            self._output.hear(logprobs["content"])
        ended = piece.finish_reason in ("stop", "length")  # of a failure the call tells
        deltas = self._reader.deltas(piece.text, ended)
        events = [event for delta in deltas for event in self._output.take(delta)]
        if ended:
            events += self._end(completed=piece.finish_reason != "length")
        return events

    def _end(self, completed: bool) -> list[dict[str, Any]]:
        events = self._output.end(completed)
        self._told |= {
            "status": "completed" if completed else "incomplete",
            "completed_at": int(time.time()) if completed else None,
            "incomplete_details": None if completed else {"reason": "max_output_tokens"},
            "output": self._output.items,
            "usage": _usage(self._request, self._num_tokens),
        }
        return events

    def _whole(self, kind: str) -> dict[str, Any]:
        return self._numbered({"type": f"response.{kind}", "response": self._told})

    def _numbered(self, event: dict[str, Any]) -> dict[str, Any]:
        number = self._num_events
        self._num_events += 1
        return {"type": event["type"], "sequence_number": number, **event}


def encoded(event: dict[str, Any]) -> bytes:
    """A server-sent event with its name."""
    return b"event: " + event["type"].encode() + b"\ndata: " + to_json(event) + b"\n\n"


def _told_back(
    service: Service, body: ResponseBody, request: Request, response_id: str
) -> dict[str, Any]:
    """The response before its answer: the request's fields and the values in effect."""
    filled = {"description": None, "parameters": None, "strict": None}
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": service.names[0],
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": request.sampling_params.temperature,
        "text": {"format": body.text_format, "verbosity": "medium"},
        "tool_choice": body.tool_choice or "auto",
        "tools": [{**filled, **tool} for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": request.sampling_params.top_p,
        "truncation": body.truncation or "disabled",
        "usage": None,
        "user": body.user,
    }


def _usage(request: Request, num_tokens: int) -> dict[str, Any]:
    counted = usage([request], num_tokens)
    cached = counted["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": num_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counted["total_tokens"],
    }


def _error(error: ApiError) -> dict[str, Any]:
    """One of the codes that clients know."""
    code = "server_error"
    if isinstance(error, BadRequest):
        code = "invalid_prompt"
    elif isinstance(error, Overloaded):
        code = "rate_limit_exceeded"
    return {"code": code, "message": error.message}
