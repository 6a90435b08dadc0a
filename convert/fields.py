"""Typed access to the fields of an untrusted configuration."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, overload

T = TypeVar("T")
_REQUIRED: Any = object()
MOST = 2**31 - 1  # of a count, a length or an id
_LARGEST = 3e38  # of a float32


def shown(value: Any) -> str:
    """`value` for an error message, cut if it is long."""
    return reprlib.repr(value)


def as_integer(value: Any) -> int | None:
    """`value` as an int if it is a whole number, also one written 2048.0; None if it is not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not value.is_integer():
        return None
    return int(value)


@dataclass(frozen=True)
class Fields:
    """The fields of one file or section.

    source: the file, for messages. prefix: what stands before every key there ("llama.").
    A method returns its default for a key that is absent. For a null it returns the default too,
    if that is None, and raises otherwise. Every error is a ValueError that names the key.
    """

    source: Path | str
    values: Mapping[str, Any]
    prefix: str = ""

    def wrong(self, key: str, wanted: str) -> ValueError:
        """Make the error for a value of `key` that is not `wanted`."""
        return ValueError(
            f"{self.source}: {self.prefix}{key}={shown(self.values[key])} must be {wanted}"
        )

    def _value(self, key: str, default: Any) -> Any:
        if key not in self.values:
            if default is _REQUIRED:
                raise ValueError(f"{self.source}: field {self.prefix}{key} is missing")
            return default
        return self.values[key]

    @overload
    def integer(self, key: str, *, least: int = ...) -> int: ...
    @overload
    def integer(self, key: str, default: T, *, least: int = ...) -> int | T: ...
    def integer(self, key: str, default: Any = _REQUIRED, *, least: int = 1) -> Any:
        """A whole number from `least` to 2^31 - 1."""
        value = self._value(key, default)
        if value is default:
            return value
        found = as_integer(value)
        if found is None or not least <= found <= MOST:
            raise self.wrong(key, f"an integer from {least} to {MOST}")
        return found

    @overload
    def number(self, key: str, *, zero: bool = ...) -> float: ...
    @overload
    def number(self, key: str, default: T, *, zero: bool = ...) -> float | T: ...
    def number(self, key: str, default: Any = _REQUIRED, *, zero: bool = False) -> Any:
        """A finite number above 0, or 0 too."""
        value = self._value(key, default)
        if value is default:
            return value
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not abs(value) < _LARGEST:
            raise self.wrong(key, "a finite number")
        if value < 0 or (value == 0 and not zero):
            raise self.wrong(key, f"a number {'of at least' if zero else 'above'} 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or False."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    @overload
    def text(self, key: str) -> str: ...
    @overload
    def text(self, key: str, default: T) -> str | T: ...
    def text(self, key: str, default: Any = _REQUIRED) -> Any:
        """A string of valid Unicode."""
        value = self._value(key, default)
        if value is default:
            return value
        if not isinstance(value, str) or not is_unicode(value):
            raise self.wrong(key, "a string")
        return value

    def section(self, key: str) -> dict[str, Any]:
        """An object, empty if it is absent or null."""
        value = self.values.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.wrong(key, "an object or null")
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        """A token id, a list of them or nothing; whether they exist is not checked."""
        value = self.values.get(key)
        listed = value if isinstance(value, list) else [] if value is None else [value]
        found = [as_integer(entry) for entry in listed]
        if None in found:
            raise self.wrong(key, "a token id, a list of token ids or null")
        return tuple(found)  # type: ignore[arg-type]


def is_unicode(text: str) -> bool:
    """Whether `text` has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_neutral(fields: Fields, neutral: Mapping[str, tuple[Any, ...]], why: str) -> None:
    """Refuse keys of `neutral` whose value is none of those listed for them.

    neutral: by key, the values with which the computation is the one that is supported.
    """
    for key in sorted(neutral.keys() & fields.values.keys()):
        value = fields.values[key]
        if value not in neutral[key]:
            allowed = ", ".join(map(repr, neutral[key])) or "absent"
            raise ValueError(
                f"{fields.source}: {fields.prefix}{key}={shown(value)} {why} "
                f"(what is supported: {allowed})"
            )
