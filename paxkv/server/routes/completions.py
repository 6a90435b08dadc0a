"""POST /v1/completions."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from starlette.responses import Response

from paxkv.engine.request import Request
from paxkv.outputs import CompletionOutput, RequestOutput
from paxkv.server.answers import answer, prepared
from paxkv.server.deltas import Piece
from paxkv.server.errors import BadRequest
from paxkv.server.prompts import Prompts, prompt_list, sampling_params
from paxkv.server.routes.logprobs import CompletionLogprobs, prompt_logprobs
from paxkv.server.schemas import GenerationBody
from paxkv.server.service import Service, new_id, usage


class CompletionBody(GenerationBody):
    """prompt: text, token ids, or a list of either. echo: give the prompt back before the answer;
    with max_tokens=0 it is scored only."""

    prompt: Prompts
    echo: bool | None = None

    @property
    def only_echoes(self) -> bool:
        most = self.max_completion_tokens
        return bool(self.echo) and (self.max_tokens if most is None else most) == 0


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/completions", response_model=None)
    async def completions(body: CompletionBody, http: HttpRequest) -> Response:
        """Complete one or several prompts."""
        service.loop.check()
        service.check_model(body.model)
        body.refuse_unsupported()
        request_id = new_id("cmpl")
        requests = await prepared(service, http, lambda: _requests(service, body, request_id))
        form = CompletionFormat(service, body, requests, request_id)
        return await answer(service, http, body, service.submit(body, requests), form)

    return router


def _requests(service: Service, body: CompletionBody, request_id: str) -> list[Request]:
    values = body.sampling(open_objects=service.settings.allow_additional_properties)
    if body.echo and "logprobs" in values:
        values.setdefault("prompt_logprobs", values["logprobs"])
    params = sampling_params(values, service.limits)
    if body.stream and body.prompt_logprobs is not None:
        raise BadRequest(
            "prompt_logprobs must be absent with stream=true; echo and logprobs show them",
            param="prompt_logprobs",
        )
    return service.make_requests(body, prompt_list(body.prompt, service.limits), params, request_id)


class CompletionFormat:
    """OpenAI's text_completion objects. A choice's index is its prompt's times n, plus its own."""

    def __init__(
        self, service: Service, body: CompletionBody, requests: list[Request], request_id: str
    ) -> None:
        self._tokenizer = service.tokenizer
        self._body = body
        self._requests = requests
        self._head = {
            "id": request_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.names[0],
        }
        self._place = {request.request_id: place for place, request in enumerate(requests)}
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._completion_tokens = 0

    def whole(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        choices = []
        for output, request in zip(outputs, self._requests):
            for completion in output.outputs:
                choice = self._choice(request, completion)
                if self._body.prompt_logprobs is not None:
                    choice["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs or ())
                choices.append(choice)
        return {**self._head, "choices": choices, "usage": self._usage()}

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        completion = CompletionOutput(
            piece.child,
            piece.text,
            piece.token_ids,
            logprobs=piece.logprobs,
            finish_reason=piece.finish_reason,
            stop_reason=piece.stop_reason,
        )
        choice = self._choice(piece.request, completion)
        shown = choice["text"] or choice["logprobs"] or choice["finish_reason"]
        if not shown and not self._body.return_token_ids:
            return []
        return [{**self._head, "choices": [choice]}]

    def usage_chunk(self) -> dict[str, Any]:
        return {**self._head, "choices": [], "usage": self._usage()}

    def _usage(self) -> dict[str, Any]:
        return usage(self._requests, self._completion_tokens)

    def _choice(self, request: Request, new: CompletionOutput) -> dict[str, Any]:
        """The choice for new output of a sequence, whole or a piece."""
        if self._body.only_echoes:
            ended = new.finish_reason and "length"
            new = replace(new, text="", token_ids=[], finish_reason=ended, stop_reason=None)
            new.logprobs = None if new.logprobs is None else []
        index = self._place[request.request_id] * request.sampling_params.n + new.index
        first = index not in self._logprobs
        if first:
            self._logprobs[index] = CompletionLogprobs(self._tokenizer, request)
        logprobs = self._logprobs[index]
        self._completion_tokens += len(new.token_ids)
        echo = self._prompt_text(request) if self._body.echo and first else ""
        lists: dict[str, Any] | None = None
        if new.logprobs is not None:
            before = logprobs.echo(echo) if echo else {}
            lists = logprobs.take(new.token_ids, new.logprobs)
            lists = {name: before.get(name, []) + found for name, found in lists.items()}
        choice: dict[str, Any] = {
            "index": index,
            "text": echo + new.text,
            "logprobs": lists,
            "finish_reason": new.finish_reason,
            "stop_reason": new.stop_reason,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = new.token_ids
            if first:
                choice["prompt_token_ids"] = request.prompt_token_ids
        return choice

    def _prompt_text(self, request: Request) -> str:
        if request.prompt is not None or self._tokenizer is None:
            return request.prompt or ""
        return self._tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)
