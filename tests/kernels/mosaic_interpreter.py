"""Mosaic's interpreter, quick enough for tests: the only place that knows something of its inside.

It compiles its reading of a kernel anew for every thread of every program of a launch. `quick`
keeps what was compiled. It replaces a private function of JAX 0.11 and 0.12; where that is not to
be found the interpreter is left alone, and takes minutes instead of seconds.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import pytest

_MODULE = "jax._src.pallas.mosaic.interpret.thread_map"


def quick(monkeypatch: pytest.MonkeyPatch) -> bool:
    """Compile each kernel once while the patch lasts; whether that was possible."""
    try:
        thread_map = importlib.import_module(_MODULE)
    except ImportError:
        return False
    if not hasattr(thread_map, "_run") or not hasattr(thread_map, "_run_jaxpr"):
        return False
    monkeypatch.setattr(thread_map, "_run_jaxpr", _compiled_once(thread_map._run))
    return True


@lru_cache
def _compiled_once(run: Callable[..., Any]) -> Callable[..., None]:
    kept: dict[int, Any] = {}
    lock = threading.Lock()

    def run_jaxpr(jaxpr: Any, consts: Any, *args: Any) -> None:
        with lock:
            if id(jaxpr) not in kept:
                lowered = jax.jit(run, static_argnums=(0,)).trace(jaxpr, consts, *args).lower()
                options = {"xla_backend_optimization_level": 0}
                # With the jaxpr, so that no other gets its id.
                kept[id(jaxpr)] = (lowered.compile(options), jaxpr)
        kept[id(jaxpr)][0](consts, *args)

    return run_jaxpr
