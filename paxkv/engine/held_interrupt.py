"""Ctrl-C that waits for the end of a call."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class HeldInterrupt:
    """While entered, Ctrl-C waits: what would have handled it does so on leaving.

    A second Ctrl-C is handled at once. Outside the main thread, where signals do not arrive, and
    where Python does not handle them, it changes nothing.
    """

    def __init__(self) -> None:
        self._pressed = 0
        self._previous: Any = None

    def __enter__(self) -> HeldInterrupt:
        if threading.current_thread() is threading.main_thread() and callable(
            signal.getsignal(signal.SIGINT)
        ):
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._handle(None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._pressed += 1
        if self._pressed > 1:
            self._handle(frame)

    def _handle(self, frame: FrameType | None) -> None:
        while self._pressed:
            self._pressed -= 1
            self._previous(signal.SIGINT, frame)
