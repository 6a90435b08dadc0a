"""ValueCount: how many values JSON holds, before it is parsed."""

from __future__ import annotations

import re

from paxkv.server.errors import BadRequest

CONTAINER = 10
_ESCAPE = re.compile(rb"\\.", re.DOTALL)


class ValueCount:
    """Counts values in JSON that arrives in chunks.

    Parsing holds the interpreter's lock from start to end, for a time that depends on the number of
    values rather than on the bytes: a list, an object and each of its fields count as CONTAINER.
    The count of malformed JSON is arbitrary: the parser refuses it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._in_text = False
        self._left = b""

    def add(self, part: bytes) -> None:
        """Raises BadRequest for UTF-16 and UTF-32, in which this would count wrong."""
        if b"\0" in part:
            raise BadRequest("the body must be JSON in UTF-8, without NUL bytes")
        plain = _ESCAPE.sub(b"", self._left + part)
        self._left = b"\\" if plain.endswith(b"\\") else b""  # its other half is to come
        pieces = plain.split(b'"')
        outside = b"".join(pieces[self._in_text :: 2])
        if len(pieces) % 2 == 0:
            self._in_text = not self._in_text
        containers = outside.count(b"[") + outside.count(b"{") + outside.count(b":")
        self.count += outside.count(b",") + CONTAINER * containers
