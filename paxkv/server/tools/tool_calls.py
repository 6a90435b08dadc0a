"""Tool calls: read out of the text of an answer, as it comes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from paxkv.server.tools.definitions import Tools

CallFormat = Literal["hermes", "llama3_json"]
OPEN, CLOSE = "<tool_call>", "</tool_call>"
BETWEEN = " \n\r\t[,]"
_DECODER = json.JSONDecoder()


@dataclass
class ToolCall:
    """A call, or more of the arguments of the last one where `name` is None."""

    name: str | None
    arguments: str


Found = str | ToolCall


class CallReader(Protocol):
    """Text in, and out what of it is content and what are calls."""

    def feed(self, text: str) -> list[Found]: ...

    def end(self) -> list[Found]: ...


def call_reader(tools: Tools, call_format: CallFormat) -> CallReader:
    """For one answer. Those that had to be calls come in the form `Tools.form` gave them."""
    if tools.choice == "named":
        return NamedCall(next(iter(tools.parameters)))
    if tools.choice == "required":
        return ListOfCalls()
    return HermesCalls() if call_format == "hermes" else LlamaCalls()


def format_of_template(template: str | None) -> CallFormat:
    """Which format a chat template teaches its model."""
    text = template or ""
    return "llama3_json" if OPEN not in text and '"parameters"' in text else "hermes"


class HermesCalls:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, among other text."""

    def __init__(self) -> None:
        self._text = ""
        self._after_call = False

    def feed(self, text: str) -> list[Found]:
        self._text += text
        return list(self._take())

    def _take(self) -> Iterator[Found]:
        while True:
            start = self._text.find(OPEN)
            if start < 0:
                keep = len(self._text) - _beginning_of(OPEN, self._text)
                if not self._after_call or self._text[:keep].strip():
                    yield from self._content(keep)
                return
            yield from self._content(start)
            end = self._text.find(CLOSE)
            if end < 0:
                return
            call = _call_in(self._text[len(OPEN) : end])
            if call is None:
                yield from self._content(end + len(CLOSE))
                continue
            self._text = self._text[end + len(CLOSE) :]
            self._after_call = True
            yield call

    def _content(self, length: int) -> Iterator[Found]:
        """So much of the text is content; white space between calls is not."""
        text, self._text = self._text[:length], self._text[length:]
        if text.strip() or not self._after_call:
            self._after_call = self._after_call and not text
            yield from _content(text)

    def end(self) -> list[Found]:
        """What was cut off is content, unless it is a call without its end."""
        text, self._text = self._text, ""
        call = _call_in(text.removeprefix(OPEN)) if text.startswith(OPEN) else None
        if call is not None:
            return [call]
        return [] if self._after_call and not text.strip() else list(_content(text))


class LlamaCalls:
    """An answer that is nothing but `{"name": …, "parameters": {…}}`, or several with `;`."""

    def __init__(self) -> None:
        self._text = ""
        self._plain = False

    def feed(self, text: str) -> list[Found]:
        if self._plain:
            return list(_content(text))
        self._text += text
        if self._text.lstrip() and not self._text.lstrip().startswith(("{", "<")):
            self._plain = True
            text, self._text = self._text, ""
            return [text]
        return []

    def end(self) -> list[Found]:
        text = self._text.strip().removeprefix("<|python_tag|>").strip()
        calls: list[Found] = []
        while text:
            try:
                value, end = _DECODER.raw_decode(text)
            except (ValueError, RecursionError):
                return list(_content(self._text))
            call = _call(value)
            if call is None:
                return list(_content(self._text))
            calls.append(call)
            text = text[end:].lstrip(" ;\n\r\t")
        return calls


class ListOfCalls:
    """A JSON list of `{"name": …, "parameters": {…}}`, each told when it is whole."""

    def __init__(self) -> None:
        self._text = ""

    def feed(self, text: str) -> list[Found]:
        self._text += text
        calls: list[Found] = []
        while True:
            rest = self._text.lstrip(BETWEEN)
            try:
                value, end = _DECODER.raw_decode(rest)
            except (ValueError, RecursionError):
                return calls
            call = _call(value)
            if call is None:
                return calls
            calls.append(call)
            self._text = rest[end:]

    def end(self) -> list[Found]:
        """An answer that was cut off in a call; what there is of it cannot be called."""
        return list(_content(self._text.strip(BETWEEN)))


class NamedCall:
    """The arguments of one function and nothing else, told as they come."""

    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def feed(self, text: str) -> list[Found]:
        if not text:
            return []
        name, self._name = self._name, None
        return [ToolCall(name, text)]

    def end(self) -> list[Found]:
        return []


def _content(text: str) -> Iterator[Found]:
    if text:
        yield text


def _beginning_of(mark: str, text: str) -> int:
    """Length of the longest end of `text` that `mark` may begin with."""
    return next((n for n in range(min(len(mark), len(text)), 0, -1) if text.endswith(mark[:n])), 0)


def _call_in(text: str) -> ToolCall | None:
    try:
        return _call(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _call(value: Any) -> ToolCall | None:
    """None for what nobody can call. Arguments are JSON whatever the model made of them."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or not name:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, str) or not _is_json(arguments):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(name, arguments)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
