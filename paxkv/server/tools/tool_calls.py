"""Tool calls, parsed from the text of an answer as it arrives."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from paxkv.server.tools.definitions import Tools
from paxkv.server.tools.json_scan import JsonScan

CallFormat = Literal["hermes", "llama3_json"]
OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, END_THINK = "<think>", "</think>"
PYTHON_TAG = "<|python_tag|>"
# Raw line breaks in a string are not JSON, and small models write them.
_DECODER = json.JSONDecoder(strict=False)
_BETWEEN = re.compile(r"[\s,;]*")
_ITEM = re.compile(
    r'[\s,\[\]}]*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"parameters"\s*:\s*(?=\{)', re.DOTALL
)


@dataclass
class ToolCall:
    """A call, or more of the arguments of the last one where `name` is None."""

    name: str | None
    arguments: str


@dataclass
class Unfinished:
    """Mark of a call that was cut off and cannot be executed."""


Found = str | ToolCall | Unfinished
State = Callable[[bool], "Step"]
Step = tuple[list[Found], State]


class CallReader(Protocol):
    """Parser that splits text into content and calls.

    What comes out does not depend on how the text is cut into pieces, but for the pieces that
    content and arguments come in.
    """

    def feed(self, text: str) -> list[Found]: ...

    def end(self) -> list[Found]: ...


def call_reader(tools: Tools, call_format: CallFormat, thinking: bool = False) -> CallReader:
    """Reader for one answer. Forced calls arrive in the structure that `Tools.form` gave them.

    thinking: whether the prompt ends within a thought that the answer continues.
    """
    if tools.choice == "named":
        return ForcedCalls(next(iter(tools.parameters)))
    if tools.choice == "required":
        return ForcedCalls()
    return HermesCalls(thinking) if call_format == "hermes" else LlamaCalls()


def format_of_template(template: str | None) -> CallFormat:
    """The format of calls that a chat template teaches its model."""
    text = template or ""
    return "llama3_json" if OPEN not in text and '"parameters"' in text else "hermes"


class HermesCalls:
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, among other text.

    A block may hold several calls, or a list of them, and lack its end. Text after the mark that is
    not a call is content, mark included, and so is a thought that the answer begins with. White
    space around calls is dropped.
    """

    def __init__(self, thinking: bool = False) -> None:
        self._text = ""
        self._state: State = self._thought if thinking else self._start
        self._told = False  # a call of this block
        self._scan: JsonScan | None = None
        self._at = 0  # how far the scan has read
        self._space = ""
        self._after_call = False

    def feed(self, text: str) -> list[Found]:
        self._text += text
        return list(self._read(ended=False))

    def end(self) -> list[Found]:
        found = list(self._read(ended=True))
        return found if self._after_call else [*found, *_content(self._space)]

    def _read(self, ended: bool) -> Iterator[Found]:
        """Go through the states until one needs more text: it returns its own name."""
        before = None
        while before != self._state:
            before = self._state
            found, self._state = self._state(ended)
            yield from found

    # States: each takes from the text, and returns what it found and the next one.

    def _start(self, ended: bool) -> Step:
        begun = self._text.lstrip()
        if not ended and THINK.startswith(begun):
            return [], self._start
        return [], self._thought if begun.startswith(THINK) else self._prose

    def _thought(self, ended: bool) -> Step:
        end = self._text.find(END_THINK)
        if end < 0:
            return self._take_prose(END_THINK, ended), self._thought
        return self._take(end + len(END_THINK)), self._prose

    def _prose(self, ended: bool) -> Step:
        start = self._text.find(OPEN)
        if start < 0:
            return self._take_prose(OPEN, ended), self._prose
        self._told = False
        return self._take(start), self._block

    def _block(self, ended: bool) -> Step:
        """At the mark that opens a block, or after a call in it."""
        mark = 0 if self._told else len(OPEN)
        at = _first(self._text, mark)
        rest = self._text[at : at + len(CLOSE)]
        if rest.startswith(("{", "[")):
            self._scan, self._at = JsonScan(), at
            return [], self._value
        if not ended and CLOSE.startswith(rest) and (self._told or not rest):
            return [], self._block
        if self._told and rest == CLOSE:
            self._text = self._text[at + len(CLOSE) :]
            return [], self._prose
        return self._take(mark), self._prose

    def _value(self, ended: bool) -> Step:
        assert self._scan is not None
        mark = 0 if self._told else len(OPEN)
        self._at = self._scan.read(self._text, self._at)
        if self._scan.outcome == "open" and not ended:
            return [], self._value
        if self._scan.outcome != "whole":
            return self._take(mark), self._prose
        calls = _calls_in(self._text[_first(self._text, mark) : self._at])
        if not calls:
            return self._take(self._at), self._prose
        self._text = self._text[self._at :]
        self._told = self._after_call = True
        self._space = ""
        return calls, self._block

    def _take_prose(self, mark: str, ended: bool) -> list[Found]:
        """Take all text as content, except an end that may begin `mark`."""
        return self._take(len(self._text) - (0 if ended else _beginning_of(mark, self._text)))

    def _take(self, length: int) -> list[Found]:
        """Take a part of the text as content; white space at its end waits for what follows."""
        text, self._text = self._space + self._text[:length], self._text[length:]
        if self._after_call:
            text = text.lstrip()
        said = text.rstrip()
        self._space = text[len(said) :]
        self._after_call = self._after_call and not said
        return list(_content(said))


class LlamaCalls:
    """An answer that is nothing but `{"name": …, "parameters": {…}}`, or several with `;`."""

    def __init__(self) -> None:
        self._text = ""
        self._plain = False

    def feed(self, text: str) -> list[Found]:
        if self._plain:
            return list(_content(text))
        self._text += text
        begun = self._text.lstrip()[: len(PYTHON_TAG)]
        if begun.startswith("{") or PYTHON_TAG.startswith(begun):
            return []
        self._plain = True
        return [self._text]

    def end(self) -> list[Found]:
        if self._plain:
            return []
        text = self._text.strip().removeprefix(PYTHON_TAG).strip()
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
        return calls or list(_content(self._text))


class ForcedCalls:
    """An answer constrained to calls: arguments stream as they arrive, nothing is content.

    name: of the one function, and then the answer is its arguments. Otherwise it is a list of
    `{"name": …, "parameters": {…}}`.
    """

    def __init__(self, name: str | None = None) -> None:
        self._text = ""
        self._name = name
        self._is_list = name is None
        self._scan = None if name is None else JsonScan()

    def feed(self, text: str) -> list[Found]:
        self._text += text
        return list(self._read())

    def _read(self) -> Iterator[Found]:
        while self._scan is not None or self._next():
            assert self._scan is not None
            end = self._scan.read(self._text)
            arguments, self._text = self._text[:end], self._text[end:]
            if arguments:
                name, self._name = self._name, None
                yield ToolCall(name, arguments)
            if self._scan.outcome != "whole":
                return
            self._scan = None

    def _next(self) -> bool:
        """Advance to the arguments of the next item of the list, if they have begun."""
        item = _ITEM.match(self._text) if self._is_list else None
        if item is None:
            return False
        self._name, self._scan = json.loads(item[1]), JsonScan()
        self._text = self._text[item.end() :]
        return True

    def end(self) -> list[Found]:
        begun = self._scan is not None and self._name is None
        return [Unfinished()] if begun else []


def _content(text: str) -> Iterator[Found]:
    if text:
        yield text


def _first(text: str, at: int) -> int:
    """The index of what comes after white space and separators."""
    found = _BETWEEN.match(text, at)
    return at if found is None else found.end()


def _beginning_of(mark: str, text: str) -> int:
    """Length of the longest end of `text` that `mark` may begin with."""
    return next((n for n in range(min(len(mark), len(text)), 0, -1) if text.endswith(mark[:n])), 0)


def _calls_in(text: str) -> list[Found]:
    """Calls in an object or a list; none if any part is not a call."""
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return []
    calls = [_call(item) for item in (value if isinstance(value, list) else [value])]
    return [] if None in calls else [call for call in calls if call is not None]


def _call(value: Any) -> ToolCall | None:
    """A call; None without a name, or if the arguments are not a JSON object."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or not name:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    try:
        if isinstance(arguments, str):
            arguments = _DECODER.decode(arguments)
        if not isinstance(arguments, dict):
            return None
        return ToolCall(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):
        return None
