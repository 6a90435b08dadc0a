"""JsonScan: the end of a JSON object or list, in text that is still arriving."""

from __future__ import annotations

import re
from typing import Literal

_SPACE = re.compile(r"[ \t\n\r]*")
_INSIDE = re.compile(r'[^"\\]*')
_SCALAR_PART = re.compile(r"[-+.0-9A-Za-z]+")
_SCALAR = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?|true|false|null", re.ASCII)
# What may come next, by what is expected; "next" is also a bracket that closes.
_EXPECTED = {
    "value": '"{[',
    "first value": '"{[]',
    "first key": '"}',
    "key": '"',
    "colon": ":",
    "next": ",]}",
}
_CLOSING = {"{": "}", "[": "]"}


class JsonScan:
    """Scans one value, each character once, and detects malformed JSON as early as possible.

    Strings may hold raw line breaks and any escape; the parser of the value decides on those.

    outcome: "open" while more may come, "whole" once the value has ended, "wrong" if it cannot be.
    """

    def __init__(self) -> None:
        self.outcome: Literal["open", "whole", "wrong"] = "open"
        self._expect = "value"
        self._brackets: list[str] = []
        self._in_string = False
        self._escaped = False
        self._is_key = False
        self._scalar = ""

    def read(self, text: str, at: int = 0) -> int:
        """Scan on from `text[at]`; return the index after the scanned part, which ends before
        `text` does where the value ends or is malformed."""
        while at < len(text) and self.outcome == "open":
            if self._in_string:
                at = self._string(text, at)
            elif self._scalar or (self._wants_value and _SCALAR_PART.match(text, at)):
                at = self._rest_of_scalar(text, at)
            else:
                at = _end(_SPACE, text, at)
                if at < len(text) and not (self._wants_value and _SCALAR_PART.match(text, at)):
                    at += self._structure(text[at])
        return at

    @property
    def _wants_value(self) -> bool:
        return self._expect in ("value", "first value")

    def _string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        at = _end(_INSIDE, text, at)
        if at == len(text):
            return at
        if text[at] == "\\":
            self._escaped = True
        else:
            self._in_string = False
            self._expect = "colon" if self._is_key else "next"
        return at + 1

    def _rest_of_scalar(self, text: str, at: int) -> int:
        end = _end(_SCALAR_PART, text, at)
        self._scalar += text[at:end]
        if end < len(text):
            if _SCALAR.fullmatch(self._scalar):
                self._scalar, self._expect = "", "next"
            else:
                self.outcome = "wrong"
        return end

    def _structure(self, char: str) -> bool:
        """Take a bracket, quote, colon or comma; False if it has no place here."""
        fits = char in _EXPECTED[self._expect]
        if fits and self._expect == "next":
            fits = bool(self._brackets) and char in (",", _CLOSING[self._brackets[-1]])
        if not fits:
            self.outcome = "wrong"
        elif char == '"':
            self._in_string, self._is_key = True, self._expect in ("key", "first key")
        elif char in _CLOSING:
            self._brackets.append(char)
            self._expect = "first key" if char == "{" else "first value"
        elif char == ":":
            self._expect = "value"
        elif char == ",":
            self._expect = "key" if self._brackets[-1] == "{" else "value"
        else:
            self._brackets.pop()
            self._expect = "next"
            if not self._brackets:
                self.outcome = "whole"
        return fits


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()
