"""Text files as editors save them: UTF-8, or what a byte-order mark says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

_HEAD_BYTES = 4


def text_lines(path: Path, errors: str = "strict") -> Iterator[str]:
    """The lines of a file, without a byte-order mark; only line feeds end one.

    Raises ValueError, naming the file, for bytes that are no text; with errors="replace" they
    become U+FFFD.
    """
    with path.open("rb") as file:
        encoding = json.detect_encoding(file.read(_HEAD_BYTES))
    with path.open(encoding=encoding, errors=errors) as text:
        try:
            yield from text
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not {encoding} text: {error}") from None


def read_text(path: Path) -> str:
    """All of a file, without a byte-order mark. Raises ValueError, naming it, if it is no text."""
    return "".join(text_lines(path))
