"""Host time per step, the device replaced by a stub that answers at once.

    python benchmarks/host_time.py [--running 64 256] [--steps 200] [--json OUT]

Everything the host does in a step is real: scheduling, block tables, the prefix cache, building
the inputs of the model and the sampler, committing tokens and stop rules. Token ids go in and come
out, so no text is made. Each engine first takes in all its requests; then every step advances
each of them by one token, and those steps are timed.
"""

from __future__ import annotations

import time
from statistics import mean, median
from typing import Any

import numpy as np
from stub_engine import MODEL, PROMPT_TOKENS, stub_engine
from timing import Clock, arguments, in_milliseconds, write

from paxkv.engine.input_processor import InputProcessor
from paxkv.sampling.sampling_params import SamplingParams

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_p": 0.95, "top_k": 50},
    "penalised": {"temperature": 0.8, "presence_penalty": 0.5, "repetition_penalty": 1.1},
}


def measure(running: int, steps: int, kind: str) -> dict[str, Any]:
    """Seconds of each timed step, and the mean seconds of its parts.

    CPU seconds are the thread's own: what the step costs, whatever else the machine is doing.
    """
    engine = stub_engine(running, steps)
    random = np.random.default_rng(0)
    prompts = [
        {"prompt_token_ids": random.integers(3, MODEL.vocab_size, PROMPT_TOKENS).tolist()}
        for _ in range(running)
    ]
    params = SamplingParams(
        max_tokens=2 * steps + 32, ignore_eos=True, detokenize=False, **KINDS[kind]
    )
    for request in InputProcessor(engine, MODEL, None).requests(prompts, params):
        engine.add(request)
    while engine.scheduler.waiting or engine.tokens_per_step[-1] != running:
        engine.step()
        if not engine.has_work:
            raise RuntimeError(f"no step ever advanced all {running} requests")
    clock = Clock(time.perf_counter)
    clock.watch(engine.scheduler, "schedule")
    clock.watch(engine.input_builder, "plan")
    clock.watch(engine.runner, "forward", "launch")
    clock.watch(engine.runner, "sample")
    seconds, cpu_seconds = [], []
    for _ in range(steps):
        before = engine.num_steps
        start, cpu_start = time.perf_counter(), time.thread_time()
        while engine.num_steps == before:
            engine.step()
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.thread_time() - cpu_start)
        advanced = engine.tokens_per_step[-1]
        if advanced != running:
            raise RuntimeError(f"a step advanced {advanced} of {running} requests")
    means = {name: spent / steps for name, spent in clock.take().items()}
    means["commit and the rest"] = mean(seconds) - sum(means.values())
    return {
        "running": running,
        "kind": kind,
        "steps": steps,
        "median_seconds": median(seconds),
        "median_cpu_seconds": median(cpu_seconds),
        "mean_seconds": mean(seconds),
        "p99_seconds": sorted(seconds)[int(0.99 * (len(seconds) - 1))],
        "mean_seconds_by_part": means,
    }


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    args = parser.parse_args()
    results = []
    for running in args.running:
        for kind in args.kinds:
            found = measure(running, args.steps, kind)
            results.append(found)
            print(
                f"{running:4} running, {kind:9}: median {found['median_seconds'] * 1e3:.2f} ms "
                f"(CPU {found['median_cpu_seconds'] * 1e3:.2f}), "
                f"mean {found['mean_seconds'] * 1e3:.2f}, p99 {found['p99_seconds'] * 1e3:.2f} "
                f"({in_milliseconds(found['mean_seconds_by_part'])})",
                flush=True,
            )
    write(args.json, results)


if __name__ == "__main__":
    main()
