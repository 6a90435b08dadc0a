"""Compile programs ahead of time, count them, and keep them in persistent caches."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from paxkv.engine.runner.program import ONCE, Arguments, Program, Variant
from paxkv.engine.runner.programs import PREPARE, PROGRAMS
from paxkv.engine.runner.trace_cache import TraceCache, surroundings, trace_key, traced

logger = logging.getLogger(__name__)


class Executable(NamedTuple):
    """A compiled program, and the shapes of its results as a tree."""

    call: Any
    results: Any


# Programs of this process's engines by last use, so that one like another compiles nothing. The
# oldest are dropped, unless an engine still has them.
_shared: dict[Hashable, Executable] = {}
MAX_SHARED = 256


class Compiler:
    """The executables of one engine, by name, and the time spent compiling them.

    seconds: spent tracing, lowering and compiling. num_traced: programs traced here, neither shared
    with another engine of this process (equal in function, static arguments and shapes) nor read
    from disk.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.num_traced = 0
        self._programs: dict[str, Executable] = {}
        self._surroundings = surroundings()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._programs)

    def results(self, name: str) -> Any:
        """Shapes of a program's results, as a tree."""
        return self._programs[name].results

    def get(
        self,
        name: str,
        function: partial[Any],
        args: Callable[[], tuple[Any, ...]],
        donate: tuple[int, ...] = (),
    ) -> Any:
        """Return the executable called `name`; compile `function` for `args()` on first use.

        args: makes a tuple of arrays or their shapes. donate: arguments whose memory is reused.
        """
        found = self._programs.get(name)
        if found is not None:
            return found.call
        start = time.perf_counter()
        shapes = jax.tree.map(_shape, args())
        leaves, structure = jax.tree.flatten(shapes)
        static = tuple(function.keywords.items())
        key = (function.func, static, tuple(leaves), structure, donate, self._surroundings)
        program = _shared.pop(key, None) or self._make(function, shapes, donate)
        _shared[key] = self._programs[name] = program
        while len(_shared) > MAX_SHARED:
            del _shared[next(iter(_shared))]
        self.seconds += time.perf_counter() - start
        logger.debug("%s ready in %.1f s", name, time.perf_counter() - start)
        return program.call

    def _make(self, function: partial[Any], args: Any, donate: tuple[int, ...]) -> Executable:
        call = self._kept(function, args, donate)
        if call is None:
            self.num_traced += 1
            call = function
        lowered = jax.jit(call, donate_argnums=donate).lower(*args)
        return Executable(lowered.compile(), lowered.out_info)

    def _kept(self, function: partial[Any], args: Any, donate: tuple[int, ...]) -> Any:
        """`function` as it was traced before, or is now to be kept; None if it cannot be kept."""
        store = TraceCache.beside_compilation_cache()
        # The key has no part for what a user's kernel calls.
        custom = any(getattr(value, "is_custom", False) for value in function.keywords.values())
        if store is None or custom:
            return None
        key = trace_key(function, args, donate)
        exported = store.load(key)
        if exported is None:
            try:
                exported = traced(function, args, donate)
            except (NotImplementedError, ValueError) as refusal:
                logger.debug("%s cannot be kept: %s", function.func.__name__, refusal)
                return None
            self.num_traced += 1
            store.save(key, exported)
        return exported.call


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def use_persistent_cache(directory: str | Path | None) -> None:
    """Keep traced and compiled programs in `directory`.

    One that cannot be written costs a warning only. Thresholds are 0, so that small programs are
    kept too.
    """
    if directory is None:
        return
    path = Path(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        logger.warning("compilation_cache_dir=%s cannot be used: %s", path, error)
        return
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    jax.config.update("jax_raise_persistent_cache_errors", False)


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
