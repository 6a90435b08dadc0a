"""Where the host's time goes, and how the benchmarks here are called and report."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paxkv.bench.throughput import machine


class Clock:
    """Seconds spent in some methods, by label.

    now: the clock; `time.thread_time` counts what the work costs, whatever else the machine does.
    """

    def __init__(self, now: Callable[[], float] = time.thread_time) -> None:
        self._now = now
        self._spent: dict[str, float] = {}

    def watch(self, owner: Any, method: str, label: str | None = None) -> None:
        """Count the time in `owner.method` from now on."""
        call, label = getattr(owner, method), label or method

        def timed(*args: Any, **named: Any) -> Any:
            start = self._now()
            try:
                return call(*args, **named)
            finally:
                self._spent[label] = self._spent.get(label, 0.0) + self._now() - start

        setattr(owner, method, timed)

    def take(self) -> dict[str, float]:
        """Seconds since the last call."""
        spent, self._spent = self._spent, {}
        return spent


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--running", type=int, nargs="+", default=[64, 256], metavar="N")
    parser.add_argument("--steps", type=int, default=200, metavar="N")
    parser.add_argument("--json", type=Path, metavar="OUT")
    return parser


def in_milliseconds(parts: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds * 1e3:.2f}" for name, seconds in parts.items())


def write(path: Path | None, results: list[dict[str, Any]]) -> None:
    if path is not None:
        report = {"machine": machine(), "results": results}
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
