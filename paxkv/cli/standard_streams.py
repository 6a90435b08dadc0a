"""Standard input, output and error, whatever they are connected to."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

# Of the wrong kind on purpose: what reads or writes through a stream that was closed is told so.
_STAND_INS = {"stdin": os.O_WRONLY, "stdout": os.O_RDONLY, "stderr": os.O_WRONLY}


def prepare_streams() -> None:
    """Give closed streams a descriptor, and let no character stop the text.

    Without one, the next file or socket that is opened would become the standard stream.
    """
    for number, (name, flags) in enumerate(_STAND_INS.items()):
        if getattr(sys, name) is None:
            _occupy(number, flags)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdin, sys.stdout):
        _replace_odd_characters(stream)
    stderr = sys.__stderr__
    if stderr is not None and stderr is sys.stderr:
        # What cannot be told must not end the work; nor is there anywhere to tell of it.
        told = io.BufferedWriter(_Unfailing(stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(
            told, stderr.encoding, errors="backslashreplace", line_buffering=True
        )


class _Unfailing(io.FileIO):
    """A file that loses what it cannot write."""

    def write(self, content: Any, /) -> int:
        try:
            written = super().write(content)
        except OSError:
            written = None
        return memoryview(content).nbytes if written is None else written


def _occupy(number: int, flags: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, flags)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)


def _replace_odd_characters(stream: TextIO) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


def output_is_broken() -> bool:
    """Whether standard output takes not even a line's end; what waits for it is dropped then."""
    try:
        print(flush=True)
    except OSError:
        # The interpreter's own flush at exit must not fail on it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def read_input() -> str:
    """All of standard input, without a byte-order mark. Raises ValueError if it is closed."""
    try:
        return sys.stdin.read().removeprefix("\ufeff")
    except OSError as error:
        raise ValueError(f"standard input cannot be read: {error.strerror}") from None


def read_line() -> str | None:
    """A stripped line of standard input, None at its end. Raises ValueError if it is closed."""
    try:
        line = sys.stdin.readline()
    except OSError as error:
        raise ValueError(f"standard input cannot be read: {error.strerror}") from None
    return line.strip().strip("\ufeff") if line else None


def announce_loading(model: str, quiet: bool) -> None:
    """Say to a person at a terminal that a model is loaded: the first bar takes seconds to come."""
    if sys.stderr.isatty() and not quiet:
        print(f"loading {model} …", file=sys.stderr, flush=True)
