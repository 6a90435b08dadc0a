"""Messages of a chat, normalized for chat templates."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_JSON_SCALARS = (type(None), bool, int, float, str)
# Where a content part of each type has its text.
_TEXT_OF_PART = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}


def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Normalize messages to the shape that templates expect.

    Content becomes text: parts are joined, and missing content is empty. Arguments of tool calls
    are parsed, since OpenAI's clients send JSON. An empty list of calls, and any field that is
    None, is dropped. Raises ValueError naming the message at fault.
    """
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise ValueError("messages must be a list of {'role': …, 'content': …} objects")
    if not messages:
        raise ValueError("messages is empty; at least one message is needed")
    return [_message(message, index) for index, message in enumerate(messages)]


def _message(message: Any, index: int) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ValueError(f"messages[{index}] must be an object with a 'role' string")
    fields = {key: plain(value) for key, value in message.items() if value is not None}
    fields["content"] = joined_text(fields.get("content", ""), index)
    calls = fields.pop("tool_calls", None)
    if calls:
        fields["tool_calls"] = _calls(calls, index)
    return fields


def _calls(calls: Any, index: int) -> list[dict[str, Any]]:
    try:
        return [_with_values(call) for call in calls]
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        raise ValueError(
            f"messages[{index}].tool_calls must be a list of "
            '{"type": "function", "function": {"name": …, "arguments": …}} objects, with arguments '
            "that are JSON"
        ) from None


def _with_values(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if isinstance(arguments, dict):
        arguments = _Arguments(arguments)
    return {**call, "function": {**function, "arguments": arguments}}


class _Arguments(dict[str, Any]):
    """Arguments of a call: a mapping for templates that iterate over it, JSON text for those
    that concatenate it."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, after: str) -> str:
        return str(self) + after

    def __radd__(self, before: str) -> str:
        return before + str(self)


def joined_text(content: Any, index: int) -> Any:
    """Message content as one string; parts like `{"type": "text", "text": …}` are concatenated."""
    if not isinstance(content, (list, tuple)):
        return content
    return "\n".join(_text(part, index) for part in content)


def _text(part: Any, index: int) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    text = part.get(_TEXT_OF_PART.get(str(kind))) if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        raise ValueError(
            f"messages[{index}]: content part {kind!r:.60} is not supported, only text: "
            '{"type": "text", "text": …}'
        )
    return text


def plain(value: Any) -> Any:
    """`value` rebuilt from JSON types, so that a template never holds an object with methods."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value if type(value) in _JSON_SCALARS else _scalar(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if callable(getattr(value, "model_dump", None)):
        return plain(value.model_dump())
    return f"<{type(value).__name__}>"


def _scalar(value: Any) -> Any:
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value) if kind is not str else str.__str__(value)
    return None
