"""POST /generate: text in, text out."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from starlette.responses import Response

from paxkv.engine.request import Request
from paxkv.outputs import RequestOutput
from paxkv.server.answers import answer, prepared
from paxkv.server.deltas import Piece
from paxkv.server.errors import BadRequest
from paxkv.server.prompts import Prompts, prompt_list, sampling_params
from paxkv.server.schemas import GenerationBody
from paxkv.server.service import Service, new_id, usage


class PlainBody(GenerationBody):
    """prompt: one text, or the token ids of one."""

    prompt: Prompts


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["plain"])

    @router.post("/generate", response_model=None)
    async def generate(body: PlainBody, http: HttpRequest) -> Response:
        """Complete a prompt: `{"text": [...]}`, one text (prompt and answer) for each of n."""
        service.loop.check()
        service.check_model(body.model)
        body.refuse_unsupported()
        request_id = new_id("gen")
        requests = await prepared(service, http, lambda: _requests(service, body, request_id))
        form = PlainFormat(service, requests[0])
        return await answer(service, http, body, service.submit(body, requests), form)

    return router


def _requests(service: Service, body: PlainBody, request_id: str) -> list[Request]:
    prompts = prompt_list(body.prompt, service.limits)
    if len(prompts) > 1:
        raise BadRequest("prompt must be one text, or the token ids of one", param="prompt")
    values = body.sampling(open_objects=service.settings.allow_additional_properties)
    return service.make_requests(body, prompts, sampling_params(values, service.limits), request_id)


class PlainFormat:
    """`{"text": [...]}`; in a stream, of every event all text so far."""

    def __init__(self, service: Service, request: Request) -> None:
        self._request = request
        prompt = request.prompt
        if prompt is None and service.tokenizer is not None:
            prompt = service.tokenizer.decode(request.prompt_token_ids, skip_special_tokens=False)
        self._texts = [prompt or ""] * request.sampling_params.n
        self._completion_tokens = 0

    def whole(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        (output,) = outputs
        return {"text": [self._texts[0] + found.text for found in output.outputs]}

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        self._completion_tokens += len(piece.token_ids)
        self._texts[piece.child] += piece.text
        return [{"text": list(self._texts)}]

    def usage_chunk(self) -> dict[str, Any]:
        return {"text": self._texts, "usage": usage([self._request], self._completion_tokens)}
