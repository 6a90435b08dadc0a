"""POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import WithJsonSchema
from starlette.responses import Response

from paxkv import validation as checks
from paxkv.server.answers import json_response
from paxkv.server.chat_prompt import Messages, conversation_ids
from paxkv.server.errors import BadRequest, bad_request
from paxkv.server.schemas import Body, ToolList
from paxkv.server.service import Service
from paxkv.server.tools.definitions import Tools


class TokenizeBody(Body):
    """prompt: a text, with special tokens added unless add_special_tokens is false. messages: or
    a conversation, with `tools` as in chat. return_token_strs: also the tokens as text."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages = None
    tools: ToolList = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(Body):
    """tokens: ids; special ones are shown."""

    model: str | None = None
    tokens: Annotated[
        Any, WithJsonSchema({"type": "array", "items": {"type": "integer", "minimum": 0}})
    ]


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["tokens"])

    @router.post("/tokenize", response_model=None)
    async def tokenize(body: TokenizeBody) -> Response:
        """The token ids of a text or a conversation."""
        service.check_model(body.model)
        return json_response(await service.work(lambda: _tokenize(service, body)))

    @router.post("/detokenize", response_model=None)
    async def detokenize(body: DetokenizeBody) -> Response:
        """The text of token ids."""
        service.check_model(body.model)
        return json_response(await service.work(lambda: _detokenize(service, body)))

    return router


def _tokenize(service: Service, body: TokenizeBody) -> dict[str, Any]:
    body.refuse_unsupported()
    tokenizer = service.need_tokenizer()
    if (body.prompt is None) == (body.messages is None):
        raise BadRequest("give either prompt or messages", param="prompt")
    if body.messages is not None:
        tools = Tools.read(body.tools, None)
        ids = conversation_ids(
            tokenizer,
            body.messages,
            service,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            variables=body.chat_template_kwargs or {},
            tools=None if tools is None else tools.given,
        )
    else:
        assert body.prompt is not None
        try:
            service.check_text(body.prompt)
            ids = tokenizer.encode(body.prompt, body.add_special_tokens)
        except ValueError as error:
            raise bad_request(error, param="prompt") from None
    found: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": service.max_model_len,
        "tokens": ids,
        "token_strs": None,
    }
    if body.return_token_strs:
        found["token_strs"] = [tokenizer.token_text(token) for token in ids]
    return found


def _detokenize(service: Service, body: DetokenizeBody) -> dict[str, Any]:
    tokenizer = service.need_tokenizer()
    if isinstance(body.tokens, list) and len(body.tokens) > service.max_model_len:
        raise BadRequest(
            f"tokens has {len(body.tokens)} entries; at most max_model_len={service.max_model_len}",
            param="tokens",
        )
    try:
        ids = checks.token_ids("tokens", body.tokens, tokenizer.vocab_size - 1)
    except ValueError as error:
        raise BadRequest(str(error), param="tokens") from None
    return {"prompt": tokenizer.decode(ids, skip_special_tokens=False)}
