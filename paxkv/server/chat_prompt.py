"""Chat prompts: messages to token ids, through the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import WithJsonSchema

from paxkv.server.errors import BadRequest, bad_request
from paxkv.server.prompts import Truncation
from paxkv.server.service import Service
from paxkv.text.messages import joined_text
from paxkv.text.tokenizer import Tokenizer
from paxkv.validation import shown

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
# What the template gets anyway, or what would choose another template.
TAKEN = {
    "messages",
    "tools",
    "documents",
    "template",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
}

_MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"type": "string", "enum": list(ROLES)},
        "content": {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                        "required": ["type", "text"],
                    },
                },
                {"type": "null"},
            ]
        },
    },
    "required": ["role"],
}
Messages = Annotated[Any, WithJsonSchema({"type": "array", "items": _MESSAGE, "minItems": 1})]


def conversation_ids(
    tokenizer: Tokenizer,
    messages: Any,
    service: Service,
    *,
    add_generation_prompt: bool | None,
    variables: Mapping[str, Any],
    tools: list[dict[str, Any]] | None = None,
    continue_final_message: bool = False,
    truncation: Truncation | None = None,
    add_special_tokens: bool = False,
) -> list[int]:
    """Token ids of a conversation; blocking. Raises BadRequest for invalid messages.

    add_generation_prompt: by default unless continue_final_message. add_special_tokens: besides
    what the template writes.
    """
    _check(messages, service.limits.max_messages)
    for name, value in (
        ("messages", messages),
        ("tools", tools),
        ("chat_template_kwargs", variables),
    ):
        _count(name, value, service.limits.max_template_values)
    if continue_final_message and add_generation_prompt:
        raise BadRequest(
            "continue_final_message and add_generation_prompt must not both be true: an answer "
            "either goes on with the last message or begins a new one",
            param="continue_final_message",
        )
    for name in variables:
        if name in TAKEN or name in tokenizer.special_tokens or not name.isidentifier():
            raise BadRequest(
                f"chat_template_kwargs must not set {shown(name)}", param="chat_template_kwargs"
            )
    try:
        text = tokenizer.render_chat(
            messages,
            not continue_final_message if add_generation_prompt is None else add_generation_prompt,
            tools,
            continue_final_message=continue_final_message,
            **variables,
        )
        if truncation is not None:
            return truncation.text(tokenizer, text, add_special_tokens)
        service.check_text(text, "messages")
        return tokenizer.encode(text, add_special_tokens)
    except ValueError as error:
        raise bad_request(error, param="messages") from None


def own_words(messages: list[dict[str, Any]]) -> str:
    """The text of a conversation's last message if it is the assistant's; empty if it is not."""
    last = messages[-1]
    if last["role"] != "assistant" or last.get("content") is None:
        return ""
    return joined_text(last["content"], len(messages) - 1)


def _check(messages: Any, most: int) -> None:
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages must be a list of at least one message", messages)
    if len(messages) > most:
        raise BadRequest(f"messages has {len(messages)} entries; at most {most}", param="messages")
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise _wrong(f"{where} must be an object with role and content", message)
        role = message.get("role")
        if role not in ROLES:
            raise _wrong(f"{where}.role must be one of {', '.join(ROLES)}", role)
        content = message.get("content")
        optional = role == "assistant" and (message.get("tool_calls") or message.get("refusal"))
        if not isinstance(content, str | list) and not (content is None and optional):
            raise _wrong(f"{where}.content must be text or a list of text parts", content)


def _count(name: str, value: Any, most: int) -> None:
    """Raise BadRequest if there are more than `most` values in `value`."""
    left = most
    unseen = [value]
    while unseen:
        item = unseen.pop()
        if not isinstance(item, list | Mapping):
            continue
        left -= len(item)
        if left < 0:
            raise BadRequest(f"{name} holds more than {most} values", param=name)
        unseen += item.values() if isinstance(item, Mapping) else item


def _wrong(rule: str, value: Any) -> BadRequest:
    return BadRequest(f"{rule}, got {shown(value)}", param="messages")
