"""Calls into an engine: one at a time, and each as a whole."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from paxkv.engine.engine import Engine
from paxkv.engine.fork import is_forked, refuse_forked
from paxkv.engine.held_signals import HeldSignals
from paxkv.engine.request import Request

T = TypeVar("T")


class Turns:
    """Lets threads share an engine, and nothing cut a call into it in two.

    Threads take turns. Ctrl-C and other signals wait for the end of a turn. So does an abort that
    comes inside a turn of the same thread, from a stream that the garbage collector closes. In a
    forked child every call is a RuntimeError.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turn = threading.RLock()
        self._depth = 0
        self._leaving: deque[str] = deque()
        self._closed = False

    def add(self, requests: Sequence[Request]) -> None:
        """Queue requests."""
        with self._taken():
            for request in requests:
                self._engine.add(request)

    def step(self) -> list[Request]:
        """`Engine.step`."""
        return self.call(self._engine.step)

    def abort(self, requests: Sequence[Request]) -> None:
        """End what has not ended, and let the step in flight land."""
        if is_forked():  # a stream's copy is closed there; the requests are the parent's
            return
        with self._turn:
            if self._closed:
                return  # they have ended
        self._leaving.extend(request.request_id for request in requests)
        with self._taken():
            pass

    def close(self) -> None:
        """End all requests and release the engine's memory; again does nothing."""
        with HeldSignals(), self._turn:
            if not self._closed:
                self._engine.close()
                self._closed = True

    def call(self, function: Callable[[], T]) -> T:
        """What `function`, which looks into the engine or changes it, returns."""
        with self._taken():
            return function()

    @contextmanager
    def _taken(self) -> Iterator[None]:
        refuse_forked()  # the lock may have been copied while it was held
        with HeldSignals(), self._turn:
            if self._closed:
                raise RuntimeError("this LLM is closed: its device memory is released")
            self._depth += 1
            try:
                yield
            finally:
                try:
                    if self._depth == 1:
                        self._let_go()
                finally:
                    self._depth -= 1

    def _let_go(self) -> None:
        if not self._leaving:
            return
        while self._leaving:
            self._engine.abort(self._leaving.popleft())
        self._engine.step()
