"""CompiledPrograms: the executables of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from paxkv.engine.runner.arguments import Arguments
from paxkv.engine.runner.compiler import Compiler
from paxkv.engine.runner.program import ONCE, Program, Variant
from paxkv.engine.runner.programs import PREPARE, PROGRAMS


class CompiledPrograms:
    """The declared programs, each compiled for a variant when it is first asked for.

    Attributes:
        arguments: what they are compiled for.
        compiler: keeps and counts them.
    """

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self.compiler = Compiler()
        self._requests: dict[tuple[str, Variant], tuple[Any, ...]] = {}

    def get(self, program: Program, variant: Variant = ONCE) -> Any:
        """Return the executable; call it with the arguments that `program` declares."""
        key = program.name, variant
        request = self._requests.get(key)
        if request is None:
            request = self._requests[key] = self._request(program, variant)
        return self.compiler.get(*request)

    def all(self) -> Iterator[tuple[Program, Variant]]:
        """Every program that a step may call."""
        for program in PROGRAMS:
            for variant in getattr(self.arguments, program.variants):
                yield program, variant

    def compile_all(self, progress: Callable[[int, int], None]) -> None:
        """Compile every program of every variant; `progress(done, in all)` before each and at the
        end."""
        programs = list(self.all())
        for done, (program, variant) in enumerate(programs):
            progress(done, len(programs))
            self.get(program, variant)
        for rows in self.arguments.sample_packings:
            self.arguments.neutral_edits(rows)
        progress(len(programs), len(programs))

    def _request(self, program: Program, variant: Variant) -> tuple[Any, ...]:
        """Arguments of `Compiler.get`."""
        static = {name: self.arguments.static[name](variant) for name in program.static}

        def args() -> tuple[Any, ...]:
            return tuple(self._array(name, variant) for name in program.arguments)

        donate = tuple(program.arguments.index(name) for name in program.donate)
        return program.name_of(variant), partial(program.function, **static), args, donate

    def _array(self, name: str, variant: Variant) -> Any:
        """`prepared`, or a part of it, is what the program before returns."""
        name, _, part = name.partition(".")
        if name != "prepared":
            return self.arguments.arrays[name](variant)
        step = Variant(variant.shape)
        self.get(PREPARE, step)
        prepared = self.compiler.results(PREPARE.name_of(step))[0]
        return getattr(prepared, part) if part else prepared
