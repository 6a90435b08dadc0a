"""Conversion of /v1/responses items to chat messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import WithJsonSchema

from paxkv.server.errors import BadRequest
from paxkv.validation import shown

Item = dict[str, Any]

ROLES = ("user", "assistant", "system", "developer")
TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}

_PART = {
    "type": "object",
    "properties": {"type": {"enum": [*TEXT_PARTS]}, "text": {"type": "string"}},
    "required": ["type"],
}
_TEXT = {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]}
_ITEMS = [
    {
        "type": "object",
        "properties": {
            "type": {"const": "message"},
            "role": {"enum": [*ROLES]},
            "content": _TEXT,
        },
        "required": ["role", "content"],
    },
    {
        "type": "object",
        "properties": {
            "type": {"const": "function_call"},
            "call_id": {"type": "string"},
            "name": {"type": "string"},
            "arguments": {"type": "string"},
        },
        "required": ["type", "call_id", "name", "arguments"],
    },
    {
        "type": "object",
        "properties": {
            "type": {"const": "function_call_output"},
            "call_id": {"type": "string"},
            "output": _TEXT,
        },
        "required": ["type", "call_id", "output"],
    },
    {
        "type": "object",
        "properties": {"type": {"const": "item_reference"}, "id": {"type": "string"}},
        "required": ["id"],
    },
]
Input = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": _ITEMS}}]}),
]


def read_items(given: Any, stored: Callable[[str], Item | None]) -> list[Item]:
    """The items of `input`, a text being a message. Raises BadRequest for what is none.

    stored: the item that a reference names, None if there is none.
    """
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise _wrong("input must be text or a list of at least one item", given)
    items = []
    for index, item in enumerate(given):
        where = f"input[{index}]"
        if not isinstance(item, dict):
            raise _wrong(f"{where} must be an object", item)
        kind = item.get("type") or ("message" if "role" in item else "item_reference")
        if kind == "item_reference":
            item = _referenced(where, item, stored)
        elif kind == "message":
            _check_message(where, item)
        elif kind == "function_call":
            for name in ("call_id", "name", "arguments"):
                if not isinstance(item.get(name), str):
                    raise _wrong(f"{where}.{name} must be text", item.get(name))
            _check_json(f"{where}.arguments", item["arguments"])
        elif kind == "function_call_output":
            if not isinstance(item.get("call_id"), str):
                raise _wrong(f"{where}.call_id must be text", item.get("call_id"))
            _texts(f"{where}.output", item.get("output"))
        else:
            raise BadRequest(
                f"{where}.type {shown(kind)} is not supported: items are messages, function calls "
                "and their outputs",
                param="input",
                code="unsupported",
            )
        items.append({**item, "type": item.get("type") or kind})
    return items


def messages_of(items: list[Item]) -> list[dict[str, Any]]:
    """The messages that read items are; an answer's text and its calls are one message.

    Raises BadRequest for the output of a call that is not there.
    """
    messages: list[dict[str, Any]] = []
    call_ids = set()
    for item in items:
        if item["type"] == "message":
            messages.append({"role": item["role"], "content": _texts("input", item["content"])})
        elif item["type"] == "function_call":
            call_ids.add(item["call_id"])
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(call)
        else:
            call_id = item["call_id"]
            if call_id not in call_ids:
                raise BadRequest(
                    f"No tool call found for function call output with call_id {shown(call_id)}.",
                    param="input",
                )
            content = _texts("input", item["output"])
            messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
    return messages


def _referenced(where: str, item: Item, stored: Callable[[str], Item | None]) -> Item:
    item_id = item.get("id")
    if not isinstance(item_id, str):
        raise _wrong(f"{where}.id must name an item", item_id)
    found = stored(item_id)
    if found is None:
        raise BadRequest(
            f"{where}: item with id {shown(item_id)} not found: it was not stored, or no longer is",
            param="input",
            code="item_not_found",
        )
    return found


def _check_message(where: str, item: Item) -> None:
    if item.get("role") not in ROLES:
        raise _wrong(f"{where}.role must be one of {', '.join(ROLES)}", item.get("role"))
    _texts(f"{where}.content", item.get("content"))


def _check_json(where: str, text: str) -> None:
    try:
        json.loads(text or "{}")
    except (ValueError, RecursionError):
        raise _wrong(f"{where} must be JSON", text) from None


def _texts(where: str, content: Any) -> Any:
    """Convert content to that of /v1/chat/completions. Raises BadRequest unless it is text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(f"{where} must be text or a list of text parts", content)
    parts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind not in TEXT_PARTS:
            raise BadRequest(
                f"{where}[{index}].type {shown(kind)} is not supported: only text is",
                param="input",
                code="unsupported",
            )
        text = part.get(TEXT_PARTS[kind])
        if not isinstance(text, str):
            raise _wrong(f"{where}[{index}].{TEXT_PARTS[kind]} must be text", text)
        parts.append({"type": "text", "text": text})
    return parts


def _wrong(rule: str, value: Any) -> BadRequest:
    return BadRequest(f"{rule}, got {shown(value)}", param="input")
