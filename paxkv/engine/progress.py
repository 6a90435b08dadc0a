"""Progress bars, for people at a terminal or in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from tqdm.auto import tqdm

from paxkv.engine.request import Request


@contextmanager
def bar(title: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """A bar driven by calls with (done, in all); shown on a terminal only, gone when done."""
    shown = tqdm(
        desc=title,
        unit=unit,
        unit_scale=unit == "B",
        leave=False,
        disable=not sys.stderr.isatty(),
    )

    def update(done: int, total: int) -> None:
        shown.total = total
        shown.update(done - shown.n)

    with shown:
        yield update


class RequestBar:
    """Finished requests, and tokens per second so far."""

    def __init__(self, total: int, shown: bool) -> None:
        self._bar = tqdm(total=total, desc="Processed prompts", disable=not shown)
        self._tokens = 0

    def note(self, request: Request) -> None:
        if not request.finished:
            return
        self._tokens += sum(len(s.output_token_ids) for s in request.sequences)
        self._bar.update(1)
        elapsed = self._bar.format_dict["elapsed"]
        if elapsed:
            self._bar.set_postfix_str(f"{self._tokens / elapsed:.1f} output tokens/s")

    def __enter__(self) -> RequestBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        self._bar.close()
