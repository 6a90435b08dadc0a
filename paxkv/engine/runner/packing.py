"""Many small arrays in one int32 buffer, so that a step costs one transfer."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Field = tuple[tuple[int, ...], type]


class Packing:
    """Where each named array stands in the buffer. Four-byte types only; equal by its fields."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._key = tuple(fields.items())
        self._fields: dict[str, tuple[int, int, tuple[int, ...], type]] = {}
        self.size = 0
        for name, (shape, kind) in fields.items():
            length = math.prod(shape)
            self._fields[name] = (self.size, self.size + length, shape, kind)
            self.size += length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Packing) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Packing({dict(self._key)})"

    def empty(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """A zeroed buffer `[size]` int32 and writable views of it by name."""
        buffer = np.zeros(self.size, np.int32)
        views: dict[str, np.ndarray] = {
            name: buffer[start:end].view(kind).reshape(shape)
            for name, (start, end, shape, kind) in self._fields.items()
        }
        return buffer, views

    def unpack(self, buffer: jax.Array) -> dict[str, jax.Array]:
        """The same arrays on device."""
        arrays = {}
        for name, (start, end, shape, kind) in self._fields.items():
            part = buffer[start:end].reshape(shape)
            if kind is not np.int32:
                part = lax.bitcast_convert_type(part, jnp.dtype(kind))
            arrays[name] = part
        return arrays
