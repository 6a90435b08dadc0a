"""Signals that wait for the end of a call."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

# What people stop a program with, or a call that takes too long.
HELD = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGVTALRM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


class HeldSignals:
    """While entered, signals that Python handles wait: their handlers run on leaving, and what
    they raise comes out of there.

    A second Ctrl-C is handled at once. Outside the main thread, where signals do not arrive, it
    changes nothing.
    """

    def __init__(self) -> None:
        self._came: list[int] = []
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> HeldSignals:
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        """All that came, though one of them raises."""
        if self._came:
            number = self._came.pop(0)
            try:
                self._handlers[number](number, frame)
            finally:
                self._handle(frame)
