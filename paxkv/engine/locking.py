"""Serialized, uninterrupted calls into an engine."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from paxkv.engine.engine import Engine
from paxkv.engine.fork import is_forked, refuse_forked
from paxkv.engine.request import Request

T = TypeVar("T")


class EngineLock:
    """Lock that lets threads share an engine, and that no signal interrupts.

    One thread at a time calls the engine. Ctrl-C and other signals wait for the end of the call. So
    does an abort that arrives inside a call of the same thread, from a stream that the garbage
    collector closes. In a forked child every call is a RuntimeError.
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
        """End unfinished requests, and wait for the step in flight."""
        if is_forked():  # a stream's copy is closed there; the requests are the parent's
            return
        with self._turn:
            if self._closed:
                return  # they have ended
        self._leaving.extend(request.request_id for request in requests)
        with self._taken():
            pass

    def close(self) -> None:
        """End all requests and release the engine's memory; idempotent."""
        with DeferredSignals(), self._turn:
            if not self._closed:
                self._engine.close()
                self._closed = True

    def call(self, function: Callable[[], T]) -> T:
        """Call `function`, which reads or changes the engine; return its result."""
        with self._taken():
            return function()

    @contextmanager
    def _taken(self) -> Iterator[None]:
        refuse_forked()  # the lock may have been copied while it was held
        with DeferredSignals(), self._turn:
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


# Signals that stop a program, or a call that takes too long.
HELD = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGVTALRM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


class DeferredSignals:
    """Context manager that defers signals with Python handlers: the handlers run on exit, and
    their exceptions are raised from there.

    A second Ctrl-C is handled at once. Outside the main thread, where signals do not arrive, it
    changes nothing.
    """

    def __init__(self) -> None:
        self._came: list[int] = []
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> DeferredSignals:
        if threading.current_thread() is not threading.main_thread():
            return self
        try:
            for number in HELD:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        except BaseException:  # of a handler that was not replaced yet
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._restore()
        finally:
            self._handle(None)

    def _restore(self) -> None:
        try:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
        except BaseException:  # of a handler that is back already
            self._restore()
            raise

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)
        if self._came.count(signal.SIGINT) > 1:
            self._handle(frame)

    def _handle(self, frame: FrameType | None) -> None:
        """Run all deferred handlers, even if one of them raises."""
        if self._came:
            number = self._came.pop(0)
            try:
                self._handlers[number](number, frame)
            finally:
                self._handle(frame)
