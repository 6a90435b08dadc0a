"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from starlette.responses import Response

from paxkv.engine.request import Request
from paxkv.outputs import CompletionOutput, RequestOutput
from paxkv.sampling.checks import shown
from paxkv.server.answers import answer
from paxkv.server.bodies import GenerationBody
from paxkv.server.conversations import Messages, conversation_ids
from paxkv.server.errors import BadRequest
from paxkv.server.logprobs import chat_logprobs, prompt_logprobs
from paxkv.server.news import Piece
from paxkv.server.prompts import sampling_params
from paxkv.server.service import Service, new_id, usage


class ChatBody(GenerationBody):
    """messages: the conversation. logprobs: whether log-probabilities are wanted, and
    top_logprobs how many alternatives of each token. Without max_tokens an answer may fill
    max_model_len. chat_template_kwargs: further names for the chat template."""

    messages: Messages
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/chat/completions", response_model=None)
    async def chat_completions(body: ChatBody, http: HttpRequest) -> Response:
        """Answer a conversation."""
        service.loop.check()
        service.check_model(body.model)
        request_id = new_id("chatcmpl")
        requests = await service.work(lambda: _requests(service, body, request_id))
        form = ChatFormat(service, body, requests[0], request_id)
        return await answer(service, http, body, service.submit(body, requests), form)

    return router


def _requests(service: Service, body: ChatBody, request_id: str) -> list[Request]:
    body.refuse_unsupported()
    values: dict[str, Any] = {"max_tokens": None, **body.sampling()}
    values.pop("logprobs", None)
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequest("top_logprobs needs logprobs=true", param="top_logprobs")
    top = body.top_logprobs or 0
    most = service.model.engine.limits.max_logprobs
    if not 0 <= top <= most:
        raise BadRequest(
            f"top_logprobs must be an integer from 0 to {most}, got {shown(top)}",
            param="top_logprobs",
        )
    if body.logprobs:
        values["logprobs"] = top
    params = sampling_params(values, service.limits)
    if body.stream and params.prompt_logprobs is not None:
        raise BadRequest("prompt_logprobs must be absent with stream=true", param="prompt_logprobs")
    ids = conversation_ids(
        service.need_tokenizer(),
        body.messages,
        service,
        add_generation_prompt=body.add_generation_prompt,
        variables=body.chat_template_kwargs or {},
    )
    return service.admit(body, [ids], params, request_id)


class ChatFormat:
    """OpenAI's chat.completion objects and chunks."""

    def __init__(self, service: Service, body: ChatBody, request: Request, request_id: str) -> None:
        self._tokenizer = service.need_tokenizer()
        self._body = body
        self._request = request
        self._head = {
            "id": request_id,
            "created": int(time.time()),
            "model": service.names[0],
        }
        self._begun: set[int] = set()
        self._completion_tokens = 0

    def whole(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        (output,) = outputs
        found: dict[str, Any] = {
            "object": "chat.completion",
            **self._head,
            "choices": [self._choice(completion) for completion in output.outputs],
            "usage": self._usage(),
        }
        if output.prompt_logprobs is not None:
            found["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        if self._body.return_token_ids:
            found["prompt_token_ids"] = output.prompt_token_ids
        return found

    def _choice(self, completion: CompletionOutput) -> dict[str, Any]:
        self._completion_tokens += len(completion.token_ids)
        choice = {
            "index": completion.index,
            "message": {"role": "assistant", "content": completion.text, "refusal": None},
            "logprobs": self._logprobs(completion.token_ids, completion.logprobs),
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = completion.token_ids
        return choice

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        self._completion_tokens += len(piece.token_ids)
        chunks = []
        if piece.child not in self._begun:
            self._begun.add(piece.child)
            chunks.append(self._chunk(piece.child, {"role": "assistant", "content": ""}))
        if piece.text or piece.logprobs or (self._body.return_token_ids and piece.token_ids):
            delta = {"content": piece.text}
            chunk = self._chunk(piece.child, delta, self._logprobs(piece.token_ids, piece.logprobs))
            if self._body.return_token_ids:
                chunk["choices"][0]["token_ids"] = piece.token_ids
            chunks.append(chunk)
        if piece.finish_reason is not None:
            chunk = self._chunk(piece.child, {})
            chunk["choices"][0]["finish_reason"] = piece.finish_reason
            chunk["choices"][0]["stop_reason"] = piece.stop_reason
            chunks.append(chunk)
        return chunks

    def usage_chunk(self) -> dict[str, Any]:
        return {
            "object": "chat.completion.chunk",
            **self._head,
            "choices": [],
            "usage": self._usage(),
        }

    def _chunk(
        self, index: int, delta: Mapping[str, Any], logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
        return {"object": "chat.completion.chunk", **self._head, "choices": [choice]}

    def _usage(self) -> dict[str, Any]:
        return usage([self._request], self._completion_tokens)

    def _logprobs(self, token_ids: list[int], entries: Any) -> dict[str, Any] | None:
        if entries is None:
            return None
        skip = self._request.params.skip_special_tokens
        top = self._body.top_logprobs or 0
        return chat_logprobs(self._tokenizer, token_ids, entries, top, skip)
