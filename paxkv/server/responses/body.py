"""ResponseBody: the body of POST /v1/responses, and its chat request."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import Field

from paxkv.server.errors import BadRequest
from paxkv.server.responses.items import Input
from paxkv.server.routes.chat import ChatBody
from paxkv.server.schemas import GenerationBody, ToolList
from paxkv.validation import shown

LOGPROBS = "message.output_text.logprobs"
# Of tools that there are not, and so without effect, besides LOGPROBS.
INCLUDES = (
    LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
MOST_METADATA, LONGEST_KEY, LONGEST_VALUE = 16, 64, 512
_ONE = "a response is one answer"
_CONTEXT = "send the items as input, or previous_response_id"
REFUSED = {
    "background": "answers are waited for, or streamed",
    "background_options": "answers are waited for, or streamed",
    "conversation": _CONTEXT,
    "prompt": "prompt templates are not kept here; send instructions and input",
    "context_management": _CONTEXT,
    "moderation": "there is no moderation",
    "image": "only text is supported",
    "n": _ONE,
    "best_of": _ONE,
    "use_beam_search": _ONE,
    "max_tokens": "use max_output_tokens",
    "max_completion_tokens": "use max_output_tokens",
    "response_format": "use text.format",
    "logprobs": f"use include=[{LOGPROBS!r}] and top_logprobs",
    "prompt_logprobs": "use /v1/chat/completions",
    "return_token_ids": "use /v1/chat/completions",
    "detokenize": "a response is text",
}
HARMLESS = {"n": 1, "best_of": 1, "detokenize": True}
# How the chat's fields are called here.
NAMES = {
    "messages": "input",
    "prompt": "input",
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
}


class ResponseBody(GenerationBody):
    """input: text, or a list of items: messages, function calls, their outputs, and references to
    items of stored responses. instructions: a system message before them, for this response alone.
    previous_response_id: a stored response to continue. store: false keeps nothing.
    max_output_tokens: without it an answer may fill max_model_len. text.format: "text",
    "json_object" or "json_schema". tools: functions. tool_choice: also "allowed_tools". include:
    "message.output_text.logprobs", with top_logprobs alternatives. truncation: "auto" leaves out
    the oldest turns of a conversation that does not fit. metadata: up to 16 strings by name."""

    input: Input
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    tools: ToolList = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    metadata: dict[str, str] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    def refuse_unsupported(self) -> None:
        for name, reason in REFUSED.items():
            value = getattr(self, name, None)
            if value not in (None, False, [], {}) and value != HARMLESS.get(name):
                raise BadRequest(
                    f"{name} is not supported: {reason}", param=name, code="unsupported"
                )
        super().refuse_unsupported()
        if self.truncation not in (None, "auto", "disabled"):
            raise BadRequest(
                f"truncation must be 'auto' or 'disabled', got {shown(self.truncation)}",
                param="truncation",
            )
        for name in self.include or ():
            if name not in INCLUDES:
                raise BadRequest(
                    f"include must name some of {', '.join(INCLUDES)}, got {shown(name)}",
                    param="include",
                )
        if self.top_logprobs and not self.wants_logprobs:
            raise BadRequest(f"top_logprobs needs include=[{LOGPROBS!r}]", param="top_logprobs")
        self._refuse_thinking()
        self._check_metadata()

    def _refuse_thinking(self) -> None:
        effort = (self.reasoning or {}).get("effort")
        if effort not in (None, "none"):
            raise BadRequest(
                "reasoning.effort is not supported: how a model thinks is up to its chat template "
                "(chat_template_kwargs)",
                param="reasoning",
                code="unsupported",
            )
        verbosity = (self.text or {}).get("verbosity")
        if verbosity not in (None, "medium"):
            raise BadRequest(
                "text.verbosity is not supported: say in instructions how long the answer is to be",
                param="text",
                code="unsupported",
            )

    def _check_metadata(self) -> None:
        found = self.metadata or {}
        if (
            len(found) > MOST_METADATA
            or max(map(len, found), default=0) > LONGEST_KEY
            or max(map(len, found.values()), default=0) > LONGEST_VALUE
        ):
            raise BadRequest(
                f"metadata must have at most {MOST_METADATA} entries, keys of at most "
                f"{LONGEST_KEY} characters and values of at most {LONGEST_VALUE}",
                param="metadata",
            )

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    def chat(self, messages: list[dict[str, Any]]) -> ChatBody:
        """The equivalent chat request; its answer is read in pieces, streamed or not."""
        names = GenerationBody.model_fields.keys() - REFUSED.keys() - {"stream_options"}
        shared = {name: getattr(self, name) for name in names}
        tools, choice = self._tools()
        return ChatBody(
            **{
                **shared,
                "messages": messages,
                "stream": True,
                "max_completion_tokens": self.max_output_tokens,
                "response_format": self._response_format(),
                "tools": tools,
                "tool_choice": choice,
                "parallel_tool_calls": self.parallel_tool_calls,
                "logprobs": self.wants_logprobs or None,
                "top_logprobs": self.top_logprobs if self.wants_logprobs else None,
                "chat_template_kwargs": self.chat_template_kwargs,
            }
        )

    @property
    def text_format(self) -> Any:
        return (self.text or {}).get("format") or {"type": "text"}

    def _response_format(self) -> dict[str, Any]:
        given = self.text_format
        kind = given.get("type") if isinstance(given, dict) else None
        if kind not in ("text", "json_object", "json_schema"):
            raise BadRequest(
                "text.format.type must be 'text', 'json_object' or 'json_schema', got "
                f"{shown(kind)}",
                param="text.format",
            )
        if kind != "json_schema":
            return {"type": kind}
        if not isinstance(given.get("name"), str) or not given["name"]:
            raise BadRequest("text.format.name must be text", param="text.format")
        if not isinstance(given.get("schema"), dict):
            raise BadRequest(
                "text.format.schema must be a JSON schema, an object", param="text.format"
            )
        described = {name: value for name, value in given.items() if name != "type"}
        return {"type": kind, "json_schema": described}

    def _tools(self) -> tuple[list[dict[str, Any]] | None, Any]:
        """Tools and choice in the chat's form."""
        tools = [_chat_tool(index, tool) for index, tool in enumerate(self.tools or ())]
        choice = self.tool_choice
        if isinstance(choice, dict) and choice.get("type") == "function":
            return tools, {"type": "function", "function": {"name": choice.get("name")}}
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            return _allowed(tools, choice), choice.get("mode")
        if isinstance(choice, dict):
            raise BadRequest(
                f"tool_choice.type {shown(choice.get('type'))} is not supported: 'function' and "
                "'allowed_tools' are",
                param="tool_choice",
                code="unsupported",
            )
        return tools or None, choice


def _chat_tool(index: int, tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise BadRequest(
            f"tools[{index}].type {shown(tool.get('type'))} is not supported: functions are",
            param="tools",
            code="unsupported",
        )
    if not isinstance(tool.get("name"), str):
        raise BadRequest(
            f"tools[{index}].name must be text: here a function's name, parameters and "
            "description stand beside its type",
            param="tools",
        )
    names = ("name", "description", "parameters", "strict")
    return {
        "type": "function",
        "function": {name: tool[name] for name in names if tool.get(name) is not None},
    }


def _allowed(tools: list[dict[str, Any]], choice: dict[str, Any]) -> list[dict[str, Any]]:
    """The tools that an "allowed_tools" choice leaves."""
    given = choice.get("tools")
    entries = given if isinstance(given, list) else [None]
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
    there = {tool["function"]["name"] for tool in tools}
    if choice.get("mode") not in ("auto", "required") or not set(names) <= there:
        raise BadRequest(
            'tool_choice must be {"type": "allowed_tools", "mode": "auto" or "required", "tools": '
            '[{"type": "function", "name": NAME}, …]} with names of the tools',
            param="tool_choice",
        )
    return [tool for tool in tools if tool["function"]["name"] in names]


@contextmanager
def own_names() -> Iterator[None]:
    """Rename fields in errors: the chat's names to those that were sent."""
    try:
        yield
    except BadRequest as error:
        message = re.sub(
            r"\b(" + "|".join(NAMES) + r")\b", lambda m: NAMES[m[1]], error.message
        ).replace("].function.", "].")
        param = NAMES.get(error.param or "", error.param)
        raise BadRequest(message, param=param, code=error.code) from None
