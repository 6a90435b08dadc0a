"""Program: the declaration of a device program."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paxkv.engine.runner.model_input import StepShape


@dataclass(frozen=True)
class Variant:
    """Sizes that one executable is compiled for; a program reads those it needs.

    shape: of the step. kinds: of the layers, each by its number. rows: to sample, or pages of a
    chunk.
    """

    shape: StepShape | None = None
    kinds: tuple[int, ...] = ()
    rows: int = 0

    @property
    def layers(self) -> int:
        """How many layers."""
        return len(self.kinds)

    @property
    def kinds_name(self) -> str:
        """How many layers, and their kinds if any is another than the first."""
        kinds = f" of kinds {' '.join(map(str, self.kinds))}" if any(self.kinds) else ""
        return f"{self.layers}{kinds}"


ONCE = Variant()


@dataclass(frozen=True, eq=False)
class Program:
    """A device program, declared once and compiled for each of its variants.

    Attributes:
        name: of an executable; a format that reads the variant `v`.
        function: pure; its keyword arguments are static, and found by name in `Arguments.static`.
        arguments: what it is called with, by name in `Arguments.arrays`.
        donate: arguments whose memory the results take over.
        variants: the name of their list in `Arguments`.
        in_flight: whether its results wait on the device while the next step is launched.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    donate: tuple[str, ...] = ()
    variants: str = "once"
    in_flight: bool = False

    @cached_property
    def static(self) -> tuple[str, ...]:
        """Names of the static arguments."""
        parameters = inspect.signature(self.function).parameters.values()
        return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)

    def name_of(self, variant: Variant) -> str:
        return self.name.format(v=variant)
