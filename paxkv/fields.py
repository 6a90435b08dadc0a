"""Field: an array that device programs read: type, shape and neutral value."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_type_hints

import jax
import numpy as np

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
