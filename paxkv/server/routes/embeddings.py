"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import Field
from starlette.responses import Response

from paxkv.engine.embedding import EmbeddingRequest, PoolingParams
from paxkv.server.answers import to_json, unless_gone
from paxkv.server.errors import BadRequest, bad_request
from paxkv.server.prompts import Prompts, make_requests, prompt_list
from paxkv.server.schemas import Body
from paxkv.server.service import Service, new_id

FORMATS = ("float", "base64")


class EmbeddingBody(Body):
    """input: text, token ids, or a list of either. encoding_format: "float" (numbers) or "base64"
    (little-endian float32). pooling: "last" or "mean". normalize: to length 1.
    truncate_prompt_tokens: only so many of an input's last tokens count; -1 for all that fit."""

    input: Prompts
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    pooling: str | None = None
    normalize: bool | None = None
    cache_salt: str | None = None
    truncate_prompt_tokens: int | None = None
    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    def pooling_params(self) -> PoolingParams:
        """Make the pooling parameters. Raises BadRequest for unsupported values."""
        if self.encoding_format not in (None, *FORMATS):
            raise BadRequest(
                f"encoding_format must be one of {', '.join(FORMATS)}", param="encoding_format"
            )
        if self.dimensions is not None:
            raise BadRequest(
                "dimensions is not supported: vectors have the model's hidden size",
                param="dimensions",
                code="unsupported",
            )
        given = {"pooling": self.pooling, "normalize": self.normalize}
        try:
            return PoolingParams(**{n: v for n, v in given.items() if v is not None})  # type: ignore[arg-type]
        except ValueError as error:
            raise bad_request(error, tuple(given)) from None


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/embeddings", response_model=None)
    async def embeddings(body: EmbeddingBody, http: HttpRequest) -> Response:
        """A vector for each input, pooled from the decoder's last hidden states."""
        service.loop.check()
        service.check_model(body.model)
        requests = await service.work(lambda: _requests(service, body))
        deadline = service.deadline(body.timeout)
        call = service.loop.submit(requests, streaming=False, deadline=deadline)
        try:
            await unless_gone(http.receive, call.finish())
        finally:
            call.close()
        content = await service.work(lambda: to_json(_answer(service, body, requests)))
        return Response(content, media_type="application/json")

    return router


def _requests(service: Service, body: EmbeddingBody) -> list[EmbeddingRequest]:
    body.refuse_unsupported()
    params = body.pooling_params()

    def make(prompt: dict[str, Any], request_id: str) -> EmbeddingRequest:
        return service.model.input_processor.embedding(
            prompt, params, request_id=request_id, cache_salt=body.cache_salt
        )

    prompts = prompt_list(body.input, service.limits, "input")
    truncation = service.truncation(body.truncate_prompt_tokens)
    cut = None if truncation is None else service.cutter(truncation)
    return make_requests(make, prompts, new_id("embd"), service.check_text, "input", cut)


def _answer(
    service: Service, body: EmbeddingBody, requests: list[EmbeddingRequest]
) -> dict[str, Any]:
    data = [
        {"object": "embedding", "index": index, "embedding": _vector(request.embedding, body)}
        for index, request in enumerate(requests)
    ]
    tokens = sum(request.num_prompt for request in requests)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": service.names[0], "usage": usage}


def _vector(embedding: np.ndarray, body: EmbeddingBody) -> list[float] | str:
    if body.encoding_format == "base64":
        return base64.b64encode(embedding.astype("<f4").tobytes()).decode()
    return embedding.tolist()
