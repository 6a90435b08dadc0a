"""Progress bars, for people at a terminal or in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from tqdm.auto import tqdm

from paxkv.engine.request import Request


@contextmanager
def bar(title: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Progress bar called with (done, total); shown on a terminal only, cleared at the end."""
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

    def __init__(self, requests: Sequence[Request], shown: bool) -> None:
        self._left = set(requests)
        self._bar = tqdm(total=len(requests), desc="Processed prompts", disable=not shown)
        self._tokens = 0

    def note(self, changed: Iterable[Request]) -> None:
        """Count finished requests; other callers' requests may be among them."""
        finished = [request for request in changed if request in self._left and request.finished]
        if not finished:
            return
        self._left.difference_update(finished)
        sequences = [sequence for request in finished for sequence in request.sequences]
        self._tokens += sum(len(sequence.output_token_ids) for sequence in sequences)
        self._bar.update(len(finished))
        elapsed = self._bar.format_dict["elapsed"]
        if elapsed:
            self._bar.set_postfix_str(f"{self._tokens / elapsed:.1f} output tokens/s")

    def __enter__(self) -> RequestBar:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()
