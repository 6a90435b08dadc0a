"""Registers over all threads, each value known or not."""

from __future__ import annotations

import numpy as np


class Undecided(Exception):
    """An address, a predicate or a branch depends on a value that is not followed."""


# Where a value is known: everywhere (None), nowhere, or in some lanes (an array).
NOWHERE: np.ndarray = np.zeros(1, bool)
Known = np.ndarray | None

_NOTHING = np.zeros(1, np.uint64)


def both(a: Known, b: Known) -> Known:
    """Where two values are known."""
    if a is None:
        return b
    if b is None or a is NOWHERE:
        return a
    if b is NOWHERE:
        return b
    return a & b


class Registers:
    """Values are unsigned integers or booleans, `[num_lanes]`, or `[1]` for one of all lanes.

    active: the lanes that run now; None for all.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.active: np.ndarray | None = None
        self._held: dict[str, tuple[np.ndarray, Known]] = {}

    def read(self, name: str) -> tuple[np.ndarray, Known]:
        """A register's value and where it is known; one never written is unknown."""
        return self._held.get(name, (_NOTHING, NOWHERE))

    def write(
        self, name: str, value: np.ndarray, known: Known = None, mask: np.ndarray | None = None
    ) -> None:
        """Write in the active lanes, or in those of `mask` among them."""
        if name == "_":
            return
        where = self.active
        if mask is not None:
            where = mask if where is None else where & mask
        if where is None:
            self._held[name] = value, known
            return
        old, old_known = self.read(name)
        if known is NOWHERE and old_known is NOWHERE:
            return
        kept = np.broadcast_to(True if old_known is None else old_known, self.lanes)
        new = np.broadcast_to(True if known is None else known, self.lanes)
        merged = np.where(where, new, kept)
        # A value that was never known has no width worth keeping.
        held = value if old_known is NOWHERE else np.where(where, value, old.astype(value.dtype))
        if known is NOWHERE:
            held = old
        self._held[name] = held, None if merged.all() else merged

    def lanes_of(self, mask: np.ndarray | None) -> np.ndarray:
        """The active lanes, of `mask` if given, bool `[num_lanes]`."""
        where = np.ones(self.lanes, bool) if self.active is None else self.active
        return where if mask is None else where & mask

    def knows(self, known: Known, mask: np.ndarray | None = None) -> bool:
        """Whether a value is known in every lane that takes part."""
        if known is None or known is NOWHERE:
            return known is None
        return not (self.lanes_of(mask) & ~known).any()

    def must_know(self, known: Known, what: str, mask: np.ndarray | None = None) -> None:
        """Raise Undecided unless a value is known in every lane that takes part."""
        if not self.knows(known, mask) and self.lanes_of(mask).any():
            raise Undecided(f"{what} depends on a value that is not followed")
