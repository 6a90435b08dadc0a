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
from paxkv.server.answers import answer, prepared
from paxkv.server.chat_prompt import Messages, conversation_ids, own_words
from paxkv.server.deltas import Piece
from paxkv.server.errors import BadRequest
from paxkv.server.prompts import Truncation, sampling_params
from paxkv.server.routes.logprobs import chat_logprobs, prompt_logprobs
from paxkv.server.schemas import GenerationBody, ToolList
from paxkv.server.service import Service, new_id, usage
from paxkv.server.tools.chat_text import ChatText
from paxkv.server.tools.definitions import Tools
from paxkv.server.tools.tool_calls import THINK, call_reader, format_of_template
from paxkv.validation import shown

LONGEST_THINK = 16  # tokens of the mark and the white space after it


class ChatBody(GenerationBody):
    """messages: the conversation. logprobs: whether log-probabilities are wanted, and
    top_logprobs how many alternatives of each token. Without max_tokens an answer may fill
    max_model_len. continue_final_message: the answer continues the last message instead of
    beginning a new one. echo: begin the answer with the last message, if that is the assistant's.
    chat_template_kwargs: further names for the chat template. reasoning_effort: one more, and
    enable_thinking with it. add_special_tokens: to what the template writes. tools, tool_choice:
    functions that may, or must, be called. parallel_tool_calls: false for one call at most."""

    messages: Messages
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    echo: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    add_special_tokens: bool | None = None
    tools: ToolList = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None

    def template_variables(self) -> dict[str, Any]:
        """Variables of the chat template besides the messages."""
        given = self.chat_template_kwargs or {}
        effort = self.reasoning_effort
        if effort is None:
            return given
        return {"reasoning_effort": effort, "enable_thinking": effort != "none", **given}


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/chat/completions", response_model=None)
    async def chat_completions(body: ChatBody, http: HttpRequest) -> Response:
        """Answer a conversation."""
        service.loop.check()
        service.check_model(body.model)
        body.refuse_unsupported()
        request_id = new_id("chatcmpl")
        tools = Tools.read(body.tools, body.tool_choice)
        requests = await prepared(
            service,
            http,
            lambda: chat_requests(service, body, tools, request_id),
        )
        form = ChatFormat(service, body, tools, requests[0], request_id)
        return await answer(service, http, body, service.submit(body, requests), form)

    return router


def chat_requests(
    service: Service, body: ChatBody, tools: Tools | None, request_id: str
) -> list[Request]:
    """The engine's request for a conversation, in a list; blocking. Raises BadRequest."""
    open_objects = service.settings.allow_additional_properties
    values: dict[str, Any] = {"max_tokens": None, **body.sampling(open_objects=open_objects)}
    form = None if tools is None else tools.form(open_objects=open_objects)
    if form is not None:
        if "structured_outputs" in values:
            raise BadRequest("tool_choice gives the answer a form already", param="tool_choice")
        values["structured_outputs"] = form
    values.pop("logprobs", None)
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequest("top_logprobs needs logprobs=true", param="top_logprobs")
    top = body.top_logprobs or 0
    most = service.model.engine.config.max_logprobs
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
    truncation = service.truncation(body.truncate_prompt_tokens, params.max_tokens)
    ids = prompt_ids(service, body, tools, truncation)
    return service.make_requests(body, [ids], params, request_id, "messages")


def prompt_ids(
    service: Service, body: ChatBody, tools: Tools | None, truncation: Truncation | None
) -> list[int]:
    """Token ids of a conversation; blocking. Raises BadRequest."""
    return conversation_ids(
        service.need_tokenizer(),
        body.messages,
        service,
        add_generation_prompt=body.add_generation_prompt,
        variables=body.template_variables(),
        add_special_tokens=bool(body.add_special_tokens),
        tools=None if tools is None else tools.given,
        continue_final_message=body.continue_final_message,
        truncation=truncation,
    )


def chat_text(service: Service, body: ChatBody, tools: Tools | None, request: Request) -> ChatText:
    """The parser of one answer's text."""
    if tools is None:
        return ChatText(None)
    tokenizer = service.need_tokenizer()
    call_format = service.settings.tool_call_parser
    if call_format == "auto":
        call_format = format_of_template(tokenizer.chat_template)
    # The prompt may end in an open thought, as templates of models that think begin answers.
    end = tokenizer.decode(request.prompt_token_ids[-LONGEST_THINK:], skip_special_tokens=False)
    reader = call_reader(tools, call_format, end.rstrip().endswith(THINK))
    return ChatText(reader, 1 if body.parallel_tool_calls is False else None)


def answer_logprobs(
    service: Service, body: ChatBody, request: Request, token_ids: list[int], entries: Any
) -> dict[str, Any] | None:
    """OpenAI's logprobs object for these tokens of an answer; None if not requested."""
    if entries is None:
        return None
    skip = request.sampling_params.skip_special_tokens
    top = body.top_logprobs or 0
    return chat_logprobs(service.need_tokenizer(), token_ids, entries, top, skip)


class ChatFormat:
    """OpenAI's chat.completion objects and chunks."""

    def __init__(
        self,
        service: Service,
        body: ChatBody,
        tools: Tools | None,
        request: Request,
        request_id: str,
    ) -> None:
        self._service = service
        self._tools = tools
        self._body = body
        self._request = request
        self._head = {
            "id": request_id,
            "created": int(time.time()),
            "model": service.names[0],
        }
        self._echo = own_words(body.messages) if body.echo else ""
        self._texts: dict[int, ChatText] = {}
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
        text = self._new_text()
        message = text.message(completion.text)
        if self._echo:
            message["content"] = self._echo + (message["content"] or "")
        choice = {
            "index": completion.index,
            "message": message,
            "logprobs": self._logprobs(completion.token_ids, completion.logprobs),
            "finish_reason": self._finish_reason(text, completion.finish_reason),
            "stop_reason": completion.stop_reason,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = completion.token_ids
        return choice

    def chunks(self, piece: Piece) -> list[dict[str, Any]]:
        self._completion_tokens += len(piece.token_ids)
        chunks = []
        if piece.child not in self._texts:
            self._texts[piece.child] = self._new_text()
            chunks.append(self._chunk(piece.child, {"role": "assistant", "content": self._echo}))
        text = self._texts[piece.child]
        deltas = text.deltas(piece.text, piece.finish_reason is not None)
        told = piece.logprobs or (self._body.return_token_ids and piece.token_ids)
        if told and not deltas:
            deltas = [{"content": ""}]
        for place, delta in enumerate(deltas):
            chunk = self._chunk(piece.child, delta)
            if place == 0:
                choice = chunk["choices"][0]
                choice["logprobs"] = self._logprobs(piece.token_ids, piece.logprobs)
                if self._body.return_token_ids:
                    choice["token_ids"] = piece.token_ids
            chunks.append(chunk)
        if piece.finish_reason is not None:
            chunk = self._chunk(piece.child, {})
            reason = self._finish_reason(text, piece.finish_reason)
            chunk["choices"][0]["finish_reason"] = reason
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

    def _new_text(self) -> ChatText:
        return chat_text(self._service, self._body, self._tools, self._request)

    def _finish_reason(self, text: ChatText, reason: str | None) -> str | None:
        """OpenAI's "tool_calls" where the model decided to call."""
        called = text.num_calls and self._tools is not None and self._tools.choice != "named"
        return "tool_calls" if called and reason == "stop" else reason

    def _chunk(self, index: int, delta: Mapping[str, Any]) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return {"object": "chat.completion.chunk", **self._head, "choices": [choice]}

    def _usage(self) -> dict[str, Any]:
        return usage([self._request], self._completion_tokens)

    def _logprobs(self, token_ids: list[int], entries: Any) -> dict[str, Any] | None:
        return answer_logprobs(self._service, self._body, self._request, token_ids, entries)
