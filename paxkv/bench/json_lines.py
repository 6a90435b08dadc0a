"""Files of JSON values, one a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paxkv.text.text_file import text_lines


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Where each value stands, for errors, and the value; blank lines are skipped.

    Raises ValueError, naming the line, for one that is not JSON, and for bytes that are no text.
    """
    for number, line in enumerate(text_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: not JSON ({error})") from None
        yield where, value


def json_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """`json_lines` of objects alone. Raises ValueError for any other value too."""
    for where, value in json_lines(path):
        if not isinstance(value, dict):
            raise ValueError(f"{where}: must be a JSON object, is a {type(value).__name__}")
        yield where, value
