"""ResponseOutput: the output items of a response, and their events."""

from __future__ import annotations

import json
import uuid
from typing import Any

Event = dict[str, Any]


class ResponseOutput:
    """Assembles the deltas of a chat answer into items; each step returns its events.

    One item is open at a time, and text that is only white space opens none unless more comes.

    items: in the order they began; the last one may be open.
    """

    def __init__(self, told_logprobs: bool) -> None:
        self.items: list[dict[str, Any]] = []
        self._told_logprobs = told_logprobs
        self._open: dict[str, Any] | None = None
        self._held = ""
        self._logprobs: list[dict[str, Any]] = []

    def hear(self, logprobs: list[dict[str, Any]]) -> None:
        """Take the log-probabilities of tokens whose text comes next."""
        self._logprobs += logprobs

    def take(self, delta: dict[str, Any]) -> list[Event]:
        """Take a delta of /v1/chat/completions."""
        events = []
        if delta.get("content"):
            events += self._text(delta["content"])
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                events += self._call(call)
            events += self._arguments(call["function"]["arguments"])
        return events

    def end(self, completed: bool) -> list[Event]:
        """End the output; the answer was cut off unless `completed`."""
        events = []
        if not self.items:
            events += self._message()
            if self._held:
                events.append(self._delta(self._held))
        if self._is_message and self._logprobs:
            events.append(self._delta(""))
        item = self._open
        whole = completed or (item is not None and _is_json(item.get("arguments", "")))
        return events + self._close("completed" if whole else "incomplete")

    def abandon(self) -> None:
        """Mark the open item as incomplete: the answer failed."""
        if self._open is not None:
            self._open["status"] = "incomplete"

    @property
    def _is_message(self) -> bool:
        return self._open is not None and self._open["type"] == "message"

    @property
    def _place(self) -> dict[str, Any]:
        """Position of the open item, for events."""
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    def _text(self, text: str) -> list[Event]:
        if self._is_message:
            return [self._delta(text)]
        text, self._held = self._held + text, ""
        if not text.strip():
            self._held = text
            return []
        return [*self._close("completed"), *self._message(), self._delta(text)]

    def _message(self) -> list[Event]:
        item: dict[str, Any] = {
            "type": "message",
            "id": _id("msg"),
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        events = self._begin(item)
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item["content"] = [part]
        event = {"type": "response.content_part.added", **self._place, "content_index": 0}
        return [*events, {**event, "part": {**part, "logprobs": []}}]

    def _delta(self, text: str) -> Event:
        part = self.items[-1]["content"][0]
        part["text"] += text
        logprobs: list[dict[str, Any]] = []
        if self._told_logprobs:
            logprobs, self._logprobs = self._logprobs, []
            part["logprobs"] += logprobs
        event = {"type": "response.output_text.delta", **self._place, "content_index": 0}
        return {**event, "delta": text, "logprobs": logprobs}

    def _call(self, call: dict[str, Any]) -> list[Event]:
        self._held, self._logprobs = "", []  # what stands between calls is told nowhere
        item = {
            "type": "function_call",
            "id": _id("fc"),
            "call_id": call["id"],
            "name": call["function"]["name"],
            "arguments": "",
            "status": "in_progress",
        }
        return [*self._close("completed"), *self._begin(item)]

    def _arguments(self, text: str) -> list[Event]:
        self._logprobs = []
        if not text:
            return []
        self.items[-1]["arguments"] += text
        event = {"type": "response.function_call_arguments.delta", **self._place}
        return [{**event, "delta": text}]

    def _begin(self, item: dict[str, Any]) -> list[Event]:
        self._open = item
        self.items.append(item)
        index = len(self.items) - 1
        return [{"type": "response.output_item.added", "output_index": index, "item": dict(item)}]

    def _close(self, status: str) -> list[Event]:
        item, self._open = self._open, None
        if item is None:
            return []
        item["status"] = status
        where = self._place
        events: list[Event] = []
        if item["type"] == "message":
            (part,) = item["content"]
            told = {**where, "content_index": 0}
            done = {"type": "response.output_text.done", **told, "text": part["text"]}
            events.append({**done, "logprobs": part["logprobs"]})
            events.append({"type": "response.content_part.done", **told, "part": part})
        else:
            done = {"type": "response.function_call_arguments.done", **where, "name": item["name"]}
            events.append({**done, "arguments": item["arguments"]})
        index = where["output_index"]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
        return events


def _id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
