"""A decode step of the whole engine, and what it is made of."""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu_check.sizes import Sizes
from paxkv.engine.build import build_engine
from paxkv.engine.config import EngineConfig
from paxkv.engine.engine import Engine
from paxkv.engine.input_processor import InputProcessor
from paxkv.models.config import ModelConfig
from paxkv.models.weight_store import Weights
from paxkv.models.weights import init_params
from paxkv.sampling.sampling_params import SamplingParams


def engine_step(sizes: Sizes, backend: str = "auto") -> dict[str, Any]:
    """Medians of decode steps in seconds: as the engine runs them, a step ahead of the device; and
    one at a time, waiting after each part.

    The model has random weights: no step is slower or faster for that.
    """
    config = ModelConfig(architecture="llama", eos_token_ids=(2,), **sizes.model)
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    params = jax.tree.map(lambda x: x.astype(dtype), init_params(config, jax.random.key(0)))
    options = EngineConfig(attention_backend=backend, **sizes.engine)
    start = time.perf_counter()
    engine = build_engine(Weights.of(params), config, options)
    ready = time.perf_counter() - start
    random = np.random.default_rng(0)
    most = min(4 * sizes.steps + 16, sizes.engine["max_model_len"] - sizes.prompt - 1)
    sampling = SamplingParams(max_tokens=most, temperature=0, ignore_eos=True, detokenize=False)
    prompts = [
        {"prompt_token_ids": random.integers(3, config.vocab_size, sizes.prompt).tolist()}
        for _ in range(sizes.running)
    ]
    for request in InputProcessor(engine, config, None).requests(prompts, sampling):
        engine.add(request)
    while engine.scheduler.waiting or engine.tokens_per_step[-1] != sizes.running:
        engine.step()
    ahead = [_timed(engine.step) for _ in range(sizes.steps)]
    parts = _apart(engine, sizes.steps)
    bytes_of_weights = sum(x.nbytes for x in jax.tree.leaves(params))
    return {
        "attention": engine.stats().attention,
        "seconds_to_ready": ready,
        "running": sizes.running,
        "step": statistics.median(ahead),
        "weights_bytes_per_second": bytes_of_weights / statistics.median(ahead),
        **{name: statistics.median(values) for name, values in parts.items()},
    }


def _timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _apart(engine: Engine, steps: int) -> dict[str, list[float]]:
    """Seconds of the forward pass, of the sample, and of the host, step by step."""
    runner, spent = engine.runner, {"forward": 0.0, "sample": 0.0}
    found: dict[str, list[float]] = {"forward": [], "sample": [], "host": []}

    def watched(name: str, call: Any) -> Any:
        def waiting(*args: Any) -> Any:
            runner.wait()
            start = time.perf_counter()
            result = call(*args)
            jax.block_until_ready(getattr(result, "sampled", None))
            runner.wait()
            spent[name] += time.perf_counter() - start
            return result

        return waiting

    for name in spent:
        setattr(runner, name, watched(name, getattr(runner, name)))
    try:
        for _ in range(steps):
            spent.update(forward=0.0, sample=0.0)
            whole = _timed(engine.step)
            for name, seconds in spent.items():
                found[name].append(seconds)
            found["host"].append(whole - sum(spent.values()))
    finally:
        for name in spent:
            delattr(runner, name)
    return found
