"""Host time of beam search per step, the device replaced by a stub that answers at once.

    python benchmarks/fork_time.py [--running 64 256] [--beams 8] [--steps 200] [--json OUT]

The whole engine steps, as in `host_time.py`. The stub's candidates are random, as widely spread as
a language model's and different for every beam, so that more beams change parents than in service.
Lengths differ, and whoever ends is replaced, so that searches end and begin all the time. Searches
that started at even and at odd steps take turns on the device, so a token for each search takes
one or two steps. Reported is the thread's time per such round: `Queues.regroup` (one fork and one
free of rows, which move the block tables and page references of many requests at once), and
what surrounds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import mean, median
from types import SimpleNamespace
from typing import Any

import numpy as np
from stub_engine import MODEL, PROMPT_TOKENS, StubCompiler, stub_engine
from timing import Clock, arguments, in_milliseconds, write

from paxkv.engine.input_processor import InputProcessor
from paxkv.sampling.sampling_params import SamplingParams

OUTPUT_TOKENS = 128
SMALL = replace(MODEL, vocab_size=4096)


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
                    ids=self._random.integers(3, SMALL.vocab_size, shape),
                    logprobs=-np.cumsum(gaps, axis=1),
                ),
            )
            return drawn, counts, last

        return draw


class Searches:
    """`running` requests of `width` beams each, at all stages of their lives.

    advanced: searches that have taken a step, in all.
    """

    def __init__(self, running: int, width: int) -> None:
        self.engine = stub_engine(
            running * width,
            OUTPUT_TOKENS,
            SMALL,
            lambda engine: BeamCompiler(engine.config.num_beam_candidates),
        )
        self._input_processor = InputProcessor(self.engine, SMALL, None)
        self._random = np.random.default_rng(1)
        self._width = width
        self.advanced = 0
        for number in range(running):
            self._add(2 + number * (OUTPUT_TOKENS - 2) // running)

    def _add(self, max_tokens: int) -> None:
        prompt = self._random.integers(3, SMALL.vocab_size, PROMPT_TOKENS).tolist()
        params = SamplingParams(
            n=self._width,
            use_beam_search=True,
            temperature=0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
        )
        self.engine.add(self._input_processor.request({"prompt_token_ids": prompt}, params))

    def step(self) -> None:
        for request in self.engine.step():
            self.advanced += 1
            if request.finished:
                self._add(OUTPUT_TOKENS)

    def round(self, running: int) -> None:
        """Steps until so many searches have advanced."""
        until = self.advanced + running
        while self.advanced < until:
            self.step()


def measure(running: int, width: int, steps: int) -> dict[str, Any]:
    searches, clock = Searches(running, width), Clock()
    engine = searches.engine
    clock.watch(engine.searches, "step", "beam rule")
    clock.watch(engine.scheduler.queues, "regroup", "fork and free")
    clock.watch(engine.block_manager, "fork_rows")
    clock.watch(engine.block_manager, "free_rows")
    clock.watch(searches, "step", "everything")
    for _ in range(running):
        searches.step()
    clock.take()
    found: list[dict[str, float]] = []
    for _ in range(steps):
        searches.round(running)
        found.append(clock.take())
    engine.block_manager.check_invariants()
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
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--beams", type=int, default=8, metavar="N")
    args = parser.parse_args()
    results = []
    for running in args.running:
        found = measure(running, args.beams, args.steps)
        results.append(found)
        print(
            f"{running:4} running, {args.beams} beams each: fork and free median "
            f"{found['fork_and_free_median_seconds'] * 1e3:.2f} ms, mean "
            f"{found['fork_and_free_mean_seconds'] * 1e3:.2f}, p99 "
            f"{found['fork_and_free_p99_seconds'] * 1e3:.2f} "
            f"({in_milliseconds(found['median_seconds_by_part'])})",
            flush=True,
        )
    write(args.json, results)


if __name__ == "__main__":
    main()
