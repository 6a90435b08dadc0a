"""Compiling ahead of time, counting, and the persistent cache."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from typing import Any

import jax

logger = logging.getLogger(__name__)


_shared: dict[Hashable, Any] = {}


class Compiler:
    """The executables of one engine, by name, and what making them cost.

    seconds: spent tracing, lowering and compiling. What another engine of this process has
    compiled already, equal in function, static arguments and shapes, is taken over.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._programs: dict[str, Any] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._programs)

    def analysis(self, name: str) -> Any:
        """What a program takes: `temp_size_in_bytes`, `output_size_in_bytes` and so on."""
        return self._programs[name].memory_analysis()

    def get(
        self,
        name: str,
        function: partial[Any],
        args: Callable[[], tuple[Any, ...]],
        donate: tuple[int, ...] = (),
    ) -> Any:
        """The executable called `name`; on first use `function` is compiled for `args()`.

        args: makes a tuple of arrays or their shapes. donate: arguments whose memory is reused.
        """
        found = self._programs.get(name)
        if found is not None:
            return found
        start = time.perf_counter()
        shapes, structure = jax.tree.flatten(jax.tree.map(_shape, args()))
        key = (function.func, tuple(function.keywords.items()), tuple(shapes), structure, donate)
        if key not in _shared:
            lowered = jax.jit(function, donate_argnums=donate).lower(
                *jax.tree.unflatten(structure, shapes)
            )
            _shared[key] = lowered.compile()
        self._programs[name] = _shared[key]
        self.seconds += time.perf_counter() - start
        logger.debug("%s ready in %.1f s", name, time.perf_counter() - start)
        return self._programs[name]


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def use_persistent_cache(directory: str | Path | None) -> None:
    """Keep compiled programs in `directory`; one that cannot be written costs a warning only.

    Thresholds are 0, so that small programs are kept too.
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
