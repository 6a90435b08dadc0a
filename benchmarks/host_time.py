"""Host time per step, the device replaced by a stub that answers at once.

    python benchmarks/host_time.py [--running 64 256] [--steps 200] [--json OUT]

Everything the host does in a step is real: scheduling, block tables, the prefix cache, building
the step plan and the rows of the draw, committing tokens and stop rules. Token ids go in and come
out, so no text is made. Each engine first takes in all its requests; then every step advances
each of them by one token, and those steps are timed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np

from paxkv.bench.throughput import machine
from paxkv.engine.admission import Admitter
from paxkv.engine.assembly import assemble
from paxkv.engine.config import EngineConfig
from paxkv.engine.engine import Engine
from paxkv.models.config import ModelConfig
from paxkv.sampling.params import SamplingParams

PROMPT_TOKENS = 128
TOKEN = 7

# One narrow layer, but a whole vocabulary: its width is what the host's arrays depend on.
MODEL = ModelConfig(
    architecture="llama",
    vocab_size=49152,
    hidden_size=8,
    intermediate_size=8,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
    eos_token_ids=(2,),
)

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.8, "top_p": 0.95, "top_k": 50},
    "penalised": {"temperature": 0.8, "presence_penalty": 0.5, "repetition_penalty": 1.1},
}


class StubCompiler:
    """In the place of the engine's compiler: programs that hand back what they were given."""

    names: tuple[str, ...] = ()
    seconds = 0.0

    def get(self, name: str, *_: Any, **__: Any) -> Callable[..., Any]:
        if name.startswith("forward"):
            return lambda params, pages, tables, last, buffer: (None, None, pages, tables)
        if name.startswith("sample"):
            size = int(name[len("sample[") : -1])
            drawn = SimpleNamespace(tokens=np.full(size, TOKEN), bad=np.zeros(size, bool))
            return lambda head, hidden, counts, last, *_: (drawn, counts, last)
        return lambda state, *_: state


def stub_engine(running: int, steps: int) -> Engine:
    """An engine with room for `running` requests of `steps` steps, and nothing behind it."""
    length = PROMPT_TOKENS + 2 * steps + 64
    weights = {
        "embed": jnp.zeros((MODEL.vocab_size, MODEL.hidden_size)),
        "layers": [{}],
        "norm": jnp.zeros(MODEL.hidden_size),
    }
    options = EngineConfig(
        enforce_eager=True,
        layers_per_program=1,
        max_model_len=length,
        max_num_seqs=running,
        max_num_batched_tokens=2048,
        num_gpu_blocks_override=running * (length // 16 + 2),
    )
    engine = assemble(weights, MODEL, options)
    engine.runner.programs.compiler = StubCompiler()  # type: ignore[assignment]
    return engine


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
    for request in Admitter(engine, MODEL, None).requests(prompts, params):
        engine.add(request)
    while engine.scheduler.waiting or engine.tokens_per_step[-1] != running:
        engine.step()
        if not engine.has_work:
            raise RuntimeError(f"no step ever advanced all {running} requests")
    parts = {
        "schedule": _timed(engine.scheduler, "schedule"),
        "plan": _timed(engine.planner, "plan"),
        "launch": _timed(engine.runner, "forward"),
        "draw": _timed(engine.runner, "draw"),
    }
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
    means = {name: sum(taken) / steps for name, taken in parts.items()}
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


def _timed(owner: Any, name: str) -> list[float]:
    """Replace a method by one that also notes how long each call took."""
    method = getattr(owner, name)
    taken: list[float] = []

    def call(*args: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return method(*args, **named)
        finally:
            taken.append(time.perf_counter() - start)

    setattr(owner, name, call)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--running", type=int, nargs="+", default=[64, 256], metavar="N")
    parser.add_argument("--steps", type=int, default=200, metavar="N")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--json", type=Path, metavar="OUT")
    args = parser.parse_args()
    results = []
    for running in args.running:
        for kind in args.kinds:
            found = measure(running, args.steps, kind)
            results.append(found)
            parts = ", ".join(
                f"{name} {seconds * 1e3:.2f}"
                for name, seconds in found["mean_seconds_by_part"].items()
            )
            print(
                f"{running:4} running, {kind:9}: median {found['median_seconds'] * 1e3:.2f} ms "
                f"(CPU {found['median_cpu_seconds'] * 1e3:.2f}), "
                f"mean {found['mean_seconds'] * 1e3:.2f}, p99 {found['p99_seconds'] * 1e3:.2f} "
                f"({parts})",
                flush=True,
            )
    if args.json is not None:
        report = {"machine": machine(), "results": results}
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
