"""Many small arrays in one int32 buffer, so that a step costs one transfer."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from paxkv.fields import Field


class Packing:
    """Offset of each named array in the buffer. Equal by its fields."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._key = tuple(fields.items())
        self._parts: dict[str, tuple[int, int, Field]] = {}
        self.size = 0
        for name, field in fields.items():
            length = math.prod(field.sizes)
            self._parts[name] = (self.size, self.size + length, field)
            self.size += length
        arrays = [field.array().reshape(-1).view(np.int32) for field in fields.values()]
        self._neutral = np.concatenate(arrays)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Packing) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Packing({dict(self._key)})"

    @property
    def abstract(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self.size,), np.int32)

    def empty(self) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """A buffer `[size]` int32 of neutral values, and writable views of it by name."""
        buffer = self._neutral.copy()
        views: dict[str, np.ndarray] = {
            name: buffer[start:end].view(field.dtype).reshape(field.sizes)
            for name, (start, end, field) in self._parts.items()
        }
        return buffer, views

    def unpack(self, buffer: jax.Array) -> dict[str, jax.Array]:
        """The same arrays on device."""
        arrays = {}
        for name, (start, end, field) in self._parts.items():
            part = buffer[start:end].reshape(field.sizes)
            if field.dtype is not np.int32:
                part = lax.bitcast_convert_type(part, jnp.dtype(field.dtype))
            arrays[name] = part
        return arrays
