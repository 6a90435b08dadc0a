"""Integer arithmetic as PTX has it: results wrap, shifts beyond the width give zero or the sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray


def _wide(a: Array, b: Array) -> Array:
    dtype = np.dtype(f"{a.dtype.kind}{a.dtype.itemsize * 2}")
    return a.astype(dtype) * b.astype(dtype)


def _high(a: Array, b: Array) -> Array:
    if a.dtype.itemsize > 4:
        raise NotImplementedError("the high half of a product of 64-bit integers")
    return (_wide(a, b) >> (8 * a.dtype.itemsize)).astype(a.dtype)


def _left(a: Array, b: Array) -> Array:
    bits = 8 * a.dtype.itemsize
    by = _amount(b)
    return np.where(by >= bits, 0, a << np.minimum(by, bits - 1).astype(a.dtype)).astype(a.dtype)


def _right(a: Array, b: Array) -> Array:
    bits = 8 * a.dtype.itemsize
    by = _amount(b)
    moved = a >> np.minimum(by, bits - 1).astype(a.dtype)
    return moved if a.dtype.kind == "i" else np.where(by >= bits, 0, moved).astype(a.dtype)


def _amount(b: Array) -> Array:
    """Shift amounts are unsigned 32-bit integers."""
    return b.astype(np.uint32)


def _divide(a: Array, b: Array) -> Array:
    """Towards zero; what a division by zero gives is unspecified."""
    divisor = np.where(b == 0, 1, b).astype(b.dtype)
    if a.dtype.kind == "u":
        return a // divisor
    quotient = np.abs(a) // np.abs(divisor)
    return np.where((a < 0) != (divisor < 0), -quotient, quotient).astype(a.dtype)


def _remainder(a: Array, b: Array) -> Array:
    return a - _divide(a, b) * b


def _field(a: Array, position: Array, length: Array) -> Array:
    """`bfe`: `length` bits from `position` on, for fields inside the integer."""
    bits = 8 * a.dtype.itemsize
    position, length = _amount(position) & 255, _amount(length) & 255
    up = np.maximum(bits - position.astype(int) - length.astype(int), 0).astype(np.uint32)
    down = np.minimum(up + position, 255).astype(np.uint32)
    return np.where(length == 0, 0, _right(_left(a, up), down)).astype(a.dtype)


UNARY: dict[str, Callable[[Any], Array]] = {
    "not": np.invert,
    "neg": np.negative,
    "abs": np.abs,
}
BINARY: dict[str, Callable[[Any, Any], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul.lo": np.multiply,
    "mul.hi": _high,
    "mul.wide": _wide,
    "div": _divide,
    "rem": _remainder,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": _left,
    "shr": _right,
}
TERNARY: dict[str, Callable[[Any, Any, Any], Array]] = {
    "mad.lo": lambda a, b, c: a * b + c,
    "bfe": _field,
}
COMPARE: dict[str, Callable[[Any, Any], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    # Of unsigned integers.
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
