"""ChatText: the text of one answer, as content and tool calls in OpenAI's form."""

from __future__ import annotations

import uuid
from typing import Any

from paxkv.server.tools.tool_calls import CallReader, ToolCall, Unfinished


class ChatText:
    """Splits an answer's text, as it arrives, into content and tool calls.

    reader: None if no tool can be called. most_calls: further ones are dropped; None for no limit.
    """

    def __init__(self, reader: CallReader | None, most_calls: int | None = None) -> None:
        self._reader = reader
        self._most_calls = most_calls
        self._cut_off = False
        self.num_calls = 0

    def deltas(self, text: str, ended: bool) -> list[dict[str, Any]]:
        """Deltas for `text`; some may be held back until more text arrives, or the end."""
        if self._reader is None:
            return [{"content": text}] if text else []
        found = self._reader.feed(text)
        if ended:
            found += self._reader.end()
        told: list[dict[str, Any]] = []
        for item in found:
            if isinstance(item, str):
                told.append({"content": item})
            elif isinstance(item, Unfinished):
                self._cut_off = self._is_told
                self.num_calls -= 1
            elif item.name is not None:
                self.num_calls += 1
                if self._is_told:
                    told.append({"tool_calls": [self._first(item)]})
            elif self._is_told:
                more = {"index": self.num_calls - 1, "function": {"arguments": item.arguments}}
                told.append({"tool_calls": [more]})
        return told

    @property
    def _is_told(self) -> bool:
        return self._most_calls is None or self.num_calls <= self._most_calls

    def _first(self, call: ToolCall) -> dict[str, Any]:
        return {
            "index": self.num_calls - 1,
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }

    def message(self, text: str) -> dict[str, Any]:
        """A whole answer as a message, without a call that was cut off."""
        deltas = self.deltas(text, ended=True)
        calls: list[dict[str, Any]] = []
        for call in (call for delta in deltas for call in delta.get("tool_calls", ())):
            if "id" in call:
                calls.append({name: value for name, value in call.items() if name != "index"})
            else:
                calls[-1]["function"]["arguments"] += call["function"]["arguments"]
        if self._cut_off:
            calls.pop()
        content = "".join(delta.get("content", "") for delta in deltas)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message.update(content=content or None, tool_calls=calls)
        return message
