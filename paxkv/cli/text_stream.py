"""A growing answer, printed as it grows."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TextIO

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


def print_stream(
    outputs: Iterable[RequestOutput], out: TextIO | None = None, keep_interrupt: bool = False
) -> StreamedAnswer:
    """Print each output's new text; ends the line.

    Args:
        outputs: what `LLM.stream` yields, each with the text so far.
        out: where to, by default standard output.
        keep_interrupt: return what came when Ctrl-C is pressed, in place of raising.
    """
    out = out or sys.stdout
    start = time.perf_counter()
    first: float | None = None
    text, num_tokens, interrupted = "", 0, False
    try:
        for output in outputs:
            completion = output.outputs[0]
            first = first or time.perf_counter()
            out.write(completion.text[len(text) :])
            out.flush()
            text, num_tokens = completion.text, len(completion.token_ids)
    except KeyboardInterrupt:
        if not keep_interrupt:
            raise
        interrupted = True
    finally:
        close = getattr(outputs, "close", None)
        if close is not None:
            close()
        if not text.endswith("\n"):
            out.write("\n")
        out.flush()
    end = time.perf_counter()
    return StreamedAnswer(text, num_tokens, (first or end) - start, end - start, interrupted)
