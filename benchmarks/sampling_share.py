"""What sampling takes of a decode step: whether it deserves a kernel of its own.

    python benchmarks/sampling_share.py --running 64 --json benchmarks/results/sampling_share.json

A step of `--running` greedy sequences of SmolLM2 is timed on the engine, the sampling of as many
rows (from logits to tokens, without the head's product) alone, for each way to draw.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from timing import arguments, write

from convert import open_checkpoint
from paxkv import LLM, SamplingParams
from paxkv.sampling.logit_edits import no_edits
from paxkv.sampling.sampler import no_rows, sample
from paxkv.sampling.token_counts import empty_counts

MODEL = "smollm2-135m"
# What is set of the rows, and of their edits.
WAYS: dict[str, tuple[dict[str, float], dict[str, float]]] = {
    "greedy": ({}, {}),
    "temperature": ({"temperature": 0.8}, {}),
    "temperature, top_k 40": ({"temperature": 0.8, "top_k": 40}, {}),
    "temperature, top_n_sigma 1": ({"temperature": 0.8, "top_n_sigma": 1.0}, {}),
    "temperature, top_p 0.9": ({"temperature": 0.8, "top_p": 0.9}, {}),
    "temperature, penalties": ({"temperature": 0.8}, {"presence": 0.5, "repetition": 1.1}),
}


def seconds(call: Callable[[], Any], times: int) -> float:
    """Median of one call."""
    jax.block_until_ready(call())
    found = []
    for _ in range(times):
        start = time.perf_counter()
        jax.block_until_ready(call())
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def step_seconds(running: int, steps: int) -> float:
    """Median of a step in which all sequences decode greedily."""
    llm = LLM(MODEL, max_num_seqs=running, max_model_len=512)
    greedy = SamplingParams(temperature=0, max_tokens=steps + 8, ignore_eos=True)
    for number in range(running):
        prompt = {"prompt_token_ids": list(range(100 + number, 164 + number))}
        llm.engine.add(llm.input_processor.request(prompt, greedy, request_id=str(number)))
    found = []
    while llm.engine.has_work:
        start = time.perf_counter()
        changed = llm.engine.step()
        took = time.perf_counter() - start
        if len(changed) == running:
            found.append(took)
    return statistics.median(found)


def sampling_seconds(way: str, running: int, vocab_size: int, times: int) -> float:
    rows_set, edits_set = WAYS[way]
    rows = no_rows(running)._replace(
        key=np.arange(2 * running, dtype=np.uint32).reshape(running, 2)
    )
    edits = no_edits(running, vocab_size)
    if edits_set:
        edits = edits._replace(slots=np.arange(1, running + 1, dtype=np.int32))
    rows = rows._replace(**{k: np.full_like(getattr(rows, k), v) for k, v in rows_set.items()})
    edits = edits._replace(**{k: np.full_like(getattr(edits, k), v) for k, v in edits_set.items()})
    logits = jax.random.normal(jax.random.key(0), (running, vocab_size)) * 4
    counts = empty_counts(running, vocab_size)
    draw = jax.jit(sample, static_argnums=(4, 8))
    given = jax.device_put((logits, rows, edits, counts))
    no_beams = jnp.zeros(running, jnp.bool_)
    no_ends = jnp.zeros_like(given[2].allowed)
    wanted = jnp.asarray(False)
    return seconds(lambda: draw(*given, 1, wanted, no_beams, no_ends, 1), times)


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(running=[64], steps=24)
    args = parser.parse_args()
    vocab_size = open_checkpoint(MODEL).config.vocab_size
    results: list[dict[str, Any]] = []
    for running in args.running:
        step = step_seconds(running, args.steps)
        greedy = sampling_seconds("greedy", running, vocab_size, args.steps)
        for way in WAYS:
            took = sampling_seconds(way, running, vocab_size, args.steps)
            share = took / (step - greedy + took)
            print(f"{running} running, {way}: {took * 1e3:.2f} ms, {share:.1%} of a step")
            found = {"running": running, "way": way, "sampling_seconds": took, "share": share}
            results.append(found | {"greedy_step_seconds": step, "vocab_size": vocab_size})
    write(args.json, results)


if __name__ == "__main__":
    main()
