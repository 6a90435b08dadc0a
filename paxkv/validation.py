"""Checks of one argument each; every failure is a ValueError naming argument, value and range."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real

SHOWN_CHARACTERS = 60


def shown(value: object) -> str:
    """`repr(value)`, abbreviated so that a hostile value never fills a log or an answer."""
    if isinstance(value, Integral) and not isinstance(value, bool) and abs(int(value)) >= 10**30:
        return f"an integer of {int(value).bit_length()} bits"
    if isinstance(value, (str, bytes)) and len(value) > SHOWN_CHARACTERS:
        return f"{value[:SHOWN_CHARACTERS]!r}… ({len(value)} characters)"
    if isinstance(value, (list, tuple, set, frozenset, dict)) and len(value) > 8:
        return f"a {type(value).__name__} of {len(value)} entries"
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def refuse(name: str, value: object, allowed: str) -> ValueError:
    return ValueError(f"{name} must be {allowed}, got {shown(value)}")


def integer(name: str, value: object, low: int, high: int, allowed: str | None = None) -> int:
    """`value` as an int in `[low, high]`; bool and float are refused, numpy integers are not."""
    allowed = allowed or f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= int(value) <= high:
        raise refuse(name, value, allowed)
    return int(value)


def number(name: str, value: object, low: float, high: float, allowed: str) -> float:
    """`value` as a finite float in `[low, high]`; bool is refused."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise refuse(name, value, allowed)
    try:
        result = float(value)
    except OverflowError:
        raise refuse(name, value, allowed) from None
    if not math.isfinite(result) or not low <= result <= high:
        raise refuse(name, value, allowed)
    return result


def boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise refuse(name, value, "True or False")
    return value


def strings(name: str, value: object, *, single: bool = False) -> tuple[str, ...]:
    """A tuple of non-empty strings; with `single`, one bare string is accepted too."""
    allowed = ("a non-empty string or " if single else "") + "a list of non-empty strings"
    if value is None:
        return ()
    if single and isinstance(value, str):
        value = (value,)
    if not isinstance(value, (list, tuple)):
        raise refuse(name, value, allowed)
    for item in value:
        if not isinstance(item, str) or not item:
            raise refuse(f"every entry of {name}", item, "a non-empty string")
    return tuple(value)


def token_ids(name: str, value: object, high: int) -> tuple[int, ...]:
    """A tuple of integers in `[0, high]`, in the caller's order."""
    if isinstance(value, (str, bytes, dict)) or not isinstance(value, Iterable):
        raise refuse(name, value, "a list of token ids")
    allowed = f"a token id from 0 to {high}"
    return tuple(integer(f"every entry of {name}", item, 0, high, allowed) for item in value)
