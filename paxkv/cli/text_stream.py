"""A growing answer, printed as it grows."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, TextIO

from paxkv.outputs import RequestOutput


@dataclass(frozen=True)
class StreamedAnswer:
    """What was printed, and how fast it came.

    Attributes:
        text: the whole answer.
        num_tokens: tokens of the answer.
        seconds_to_first: seconds from the call to the first piece.
        seconds: seconds from the call to the end.
        interrupted: Ctrl-C ended it.
    """

    text: str
    num_tokens: int
    seconds_to_first: float
    seconds: float
    interrupted: bool = False

    def describe(self) -> str:
        rate = self.num_tokens / self.seconds if self.seconds else 0.0
        return (
            f"{self.num_tokens} tokens in {self.seconds:.2f} s ({rate:.1f} tokens/s), "
            f"first after {self.seconds_to_first:.2f} s"
        )


def print_stream(outputs: Iterator[RequestOutput], out: TextIO | None = None) -> StreamedAnswer:
    """Print each output's new text as it comes, and end the line. Ctrl-C stops it early.

    Args:
        outputs: what `LLM.stream` returns; each holds the text so far. Closed when this returns.
        out: where to, by default standard output.
    """
    out = out or sys.stdout
    start = time.perf_counter()
    first: float | None = None
    text, num_tokens = "", 0
    with Interrupt() as interrupt:
        try:
            for output in outputs:
                completion = output.outputs[0]
                first = first or time.perf_counter()
                out.write(completion.text[len(text) :])
                out.flush()
                text, num_tokens = completion.text, len(completion.token_ids)
                if interrupt.pressed:
                    break
        finally:
            if isinstance(outputs, Generator):
                outputs.close()
            if text and not text.endswith("\n"):
                out.write("\n")
            out.flush()
    end = time.perf_counter()
    return StreamedAnswer(text, num_tokens, (first or end) - start, end - start, interrupt.pressed)


class Interrupt:
    """While entered, Ctrl-C sets `pressed` and raises nothing, so that no step is cut in two.

    A second Ctrl-C raises KeyboardInterrupt at once. Outside the main thread, where signals do
    not arrive, it changes nothing.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._previous: Any = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True
