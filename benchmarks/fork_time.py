"""Host time of beam search per step, the device replaced by a stub that answers at once.

    python benchmarks/fork_time.py [--running 64 256] [--beams 8] [--steps 200] [--json OUT]

The whole engine steps, as in `host_time.py`. The stub's candidates are random, as widely spread as
a language model's and different for every beam, so that more beams change parents than in service.
Lengths differ, and whoever ends is replaced, so that searches end and begin all the time. Searches
that started at even and at odd steps take turns on the device, so a token for each search takes
one or two steps. Reported is the thread's time per such round: `Scheduler.regroup` (one fork and
one free of rows, which move the block tables and page references of many requests at once), and
what surrounds it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from host_time import MODEL, PROMPT_TOKENS, StubCompiler, stub_engine

from paxkv.bench.throughput import machine
from paxkv.engine import beam_groups
from paxkv.engine.admission import Admitter
from paxkv.engine.engine import Engine
from paxkv.engine.request import Request
from paxkv.sampling.params import SamplingParams

OUTPUT_TOKENS = 128
VOCAB = 4096


class BeamCompiler(StubCompiler):
    """Hands back random candidates from draws."""

    def __init__(self, candidates: int) -> None:
        self._candidates = candidates
        self._random = np.random.default_rng(0)

    def get(self, name: str, *_: Any, **__: Any) -> Callable[..., Any]:
        if not name.startswith("sample"):
            return super().get(name)
        size = int(name[len("sample[") : -1])

        def draw(head: Any, hidden: Any, counts: Any, last: Any, *_: Any) -> Any:
            shape = (size, self._candidates)
            gaps = self._random.exponential(0.5, shape).astype(np.float32)
            drawn = SimpleNamespace(
                tokens=np.zeros(size, np.int32),
                bad=np.zeros(size, bool),
                candidates=SimpleNamespace(
                    ids=self._random.integers(3, VOCAB, shape), logprobs=-np.cumsum(gaps, axis=1)
                ),
            )
            return drawn, counts, last

        return draw


class Clock:
    """Seconds of the thread spent in some functions, by name."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.spent[name] = self.spent.get(name, 0.0) + time.thread_time() - start

        return call

    def take(self) -> dict[str, float]:
        spent, self.spent = self.spent, {}
        return spent


class Searches:
    """`running` requests of `width` beams each, at all stages of their lives."""

    def __init__(self, running: int, width: int) -> None:
        with mock.patch("host_time.MODEL", replace(MODEL, vocab_size=VOCAB)):
            self.engine: Engine = stub_engine(running * width, OUTPUT_TOKENS)
        self.engine.runner.programs.compiler = BeamCompiler(  # type: ignore[assignment]
            self.engine.limits.beam_candidates
        )
        self._admitter = Admitter(self.engine, replace(MODEL, vocab_size=VOCAB), None)
        self._random = np.random.default_rng(1)
        self._width = width
        for number in range(running):
            self._add(2 + number * (OUTPUT_TOKENS - 2) // running)

    def _add(self, max_tokens: int) -> None:
        prompt = self._random.integers(3, VOCAB, PROMPT_TOKENS).tolist()
        params = SamplingParams(
            n=self._width,
            use_beam_search=True,
            temperature=0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
        )
        self.engine.add(self._admitter.request({"prompt_token_ids": prompt}, params))

    def step(self) -> None:
        for request in self.engine.step():
            if request.finished:
                self._add(OUTPUT_TOKENS)


def measure(running: int, width: int, steps: int) -> dict[str, Any]:
    searches, clock = Searches(running, width), Clock()
    scheduler = searches.engine.scheduler
    memory = searches.engine.block_manager
    scheduler.regroup = clock.timed(  # type: ignore[method-assign]
        "fork and free", scheduler.regroup
    )
    memory.fork_rows = clock.timed("fork_rows", memory.fork_rows)  # type: ignore[method-assign]
    memory.free_rows = clock.timed("free_rows", memory.free_rows)  # type: ignore[method-assign]
    step = clock.timed("everything", searches.step)
    rule = clock.timed("beam rule", beam_groups.advance)
    advanced = 0

    def advance(requests: list[Request]) -> Any:
        nonlocal advanced
        advanced += len(requests)
        return rule(requests)

    found: list[dict[str, float]] = []
    with mock.patch.object(beam_groups, "advance", advance):
        for _ in range(running):
            step()
        while len(found) < steps:
            clock.take()
            advanced = 0
            while advanced < running:
                step()
            found.append(clock.take())
    memory.check_invariants()
    forks = sorted(spent["fork and free"] for spent in found)
    return {
        "running": running,
        "beams": width,
        "steps": steps,
        "fork_and_free_median_seconds": median(forks),
        "fork_and_free_mean_seconds": mean(forks),
        "fork_and_free_p99_seconds": forks[int(0.99 * (steps - 1))],
        "median_seconds_by_part": {
            name: median(spent.get(name, 0.0) for spent in found) for name in found[0]
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--running", type=int, nargs="+", default=[64, 256], metavar="N")
    parser.add_argument("--beams", type=int, default=8, metavar="N")
    parser.add_argument("--steps", type=int, default=200, metavar="N")
    parser.add_argument("--json", type=Path, metavar="OUT")
    args = parser.parse_args()
    results = []
    for running in args.running:
        found = measure(running, args.beams, args.steps)
        results.append(found)
        parts = ", ".join(
            f"{name} {seconds * 1e3:.2f}"
            for name, seconds in found["median_seconds_by_part"].items()
        )
        print(
            f"{running:4} running, {args.beams} beams each: fork and free median "
            f"{found['fork_and_free_median_seconds'] * 1e3:.2f} ms, mean "
            f"{found['fork_and_free_mean_seconds'] * 1e3:.2f}, p99 "
            f"{found['fork_and_free_p99_seconds'] * 1e3:.2f} ({parts})",
            flush=True,
        )
    if args.json is not None:
        report = {"machine": machine(), "results": results}
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
