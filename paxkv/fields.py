"""Arrays that device programs read, each a `Field`, and many of them packed into one buffer."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Rows = TypeVar("Rows")


@dataclass(frozen=True)
class Field:
    """An array of a device program.

    Attributes:
        dtype: of four bytes.
        neutral: value of padding and of absent entries; it broadcasts to the shape.
        shape: sizes, or names of sizes that `of` resolves.
    """

    dtype: type
    neutral: Any = 0
    shape: tuple[int | str, ...] = ()

    def of(self, rows: int, **sizes: int) -> Field:
        """The field for `rows` rows, with its sizes resolved."""
        shape = (sizes[n] if isinstance(n, str) else n for n in self.shape)
        return replace(self, shape=(rows, *shape))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape, which must have no names left."""
        return tuple(map(int, self.shape))

    @property
    def abstract(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.sizes, self.dtype)

    def array(self) -> np.ndarray:
        """Neutral values, to be filled in."""
        return np.full(self.sizes, self.neutral, self.dtype)


@functools.cache
def fields_of(kind: type) -> dict[str, Field]:
    """Entries of one row, by name: a NamedTuple of arrays carries them in its annotations."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


def neutral_rows(kind: type[Rows], rows: int, **sizes: int) -> Rows:
    """Make `rows` neutral rows on the host."""
    fields = fields_of(kind)  # type: ignore[arg-type]
    return kind(**{name: field.of(rows, **sizes).array() for name, field in fields.items()})


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
