"""Weights of a model, read by a thread while programs compile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import jax

from paxkv.models.weights import Tree


class Weights:
    """Weights, maybe still loading. shapes: their tree of `jax.ShapeDtypeStruct`, known now."""

    def __init__(self, shapes: Tree, arrays: Future[Tree]) -> None:
        self.shapes = shapes
        self._arrays = arrays

    @classmethod
    def of(cls, params: Tree) -> Weights:
        """Weights that are loaded already."""
        arrays: Future[Tree] = Future()
        arrays.set_result(params)
        return cls(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params), arrays)

    @classmethod
    @contextmanager
    def reading(
        cls, shapes: Tree, load: Callable[..., Tree], progress: Callable[[int, int], None]
    ) -> Iterator[Weights]:
        """Weights that `load(progress=…)` reads in a thread, which ends with the context.

        progress: called by that thread with (bytes done, bytes in all).
        """
        left = threading.Event()
        device = jax.config.jax_default_device  # type: ignore[attr-defined]

        def note(done: int, total: int) -> None:
            if left.is_set():
                raise InterruptedError("these weights are no longer needed")
            progress(done, total)

        def read() -> Tree:
            with jax.default_device(device):
                return load(progress=note)

        with ThreadPoolExecutor(1, "paxkv-weights") as thread:
            try:
                yield cls(shapes, thread.submit(read))
            finally:
                left.set()

    def arrays(self) -> Tree:
        """Wait for the weights and return them; raises what loading raised."""
        return self._arrays.result()

    def check(self) -> None:
        """Raise what loading has raised so far."""
        if self._arrays.done():
            self._arrays.result()
