"""From a model and options to a running engine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from paxkv.cache.pages import PageLayout
from paxkv.engine.config import DTYPES, EngineConfig, Limits
from paxkv.engine.engine import Engine
from paxkv.engine.fork import mark_in_use, refuse_forked
from paxkv.engine.runner.attention import Kernels
from paxkv.engine.runner.buckets import Buckets
from paxkv.engine.runner.compiled_programs import CompiledPrograms
from paxkv.engine.runner.device_memory import (
    DeviceMemory,
    claim,
    device_bytes,
    host_blocks,
    pool_size,
    require_memory,
    step_memory,
)
from paxkv.engine.runner.malloc import keep_temporaries, return_freed
from paxkv.engine.runner.model_input import InputBuilder
from paxkv.engine.runner.runner import Runner
from paxkv.engine.scheduler.policy import Policy
from paxkv.engine.scheduler.queues import Preemption
from paxkv.memory import BlockManager, ContiguousManager
from paxkv.models.config import ModelConfig
from paxkv.models.decoder import Rope
from paxkv.models.rope import rope_parameters
from paxkv.models.weight_store import Weights

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None] | None


def build_engine(
    weights: Weights,
    config: ModelConfig,
    options: EngineConfig,
    progress: Progress = None,
    device: Any = None,
) -> Engine:
    """Allocate pages, compile every program, and return the engine.

    weights: waited for as late as can be; a device that counts its memory must have them first.
    progress: called with (programs compiled, programs in all).
    device: whose `memory_stats()` decide the number of pages; by default JAX's first.
    Raises ValueError if the options contradict each other, the model or the memory.
    """
    refuse_forked()
    mark_in_use()
    if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        raise ValueError("jax_disable_jit=True cannot run an engine: its programs are compiled")
    if jax.default_backend() == "cpu":
        keep_temporaries()
        return_freed()  # by an engine before this one
    dtype = weights.shapes["embed"].dtype
    page_dtype = resolve_dtype(options.kv_cache_dtype, dtype)
    limits = _limits(config, options, dtype)
    kernels = Kernels.choose(
        options.attention_backend, config, limits, dtype, page_dtype, options.deterministic
    )
    layout = PageLayout.of(config, options.block_size, page_dtype, kernels.transposed_keys)
    policy = Policy.of(options, limits.max_model_len)
    inv_freq, factor = rope_parameters(config, limits.max_model_len)
    choose = Buckets.single if options.deterministic else Buckets.choose
    buckets = choose(limits.max_num_seqs, limits.max_num_batched_tokens)
    num_host_blocks = host_blocks(layout, options)
    table = partial(
        CompiledPrograms,
        weights.shapes,
        config,
        limits,
        rope=Rope(tuple(inv_freq.tolist()), factor),
        layout=layout,
        buckets=buckets,
        kernels=kernels,
        layers_per_program=options.layers_per_program,
        swapping=num_host_blocks > 0,
    )
    available = _memory_beside(weights, device or jax.local_devices()[0])
    size = pool_size(
        layout,
        options,
        limits.max_model_len,
        available,
        lambda num_pages: step_memory(table(num_pages=num_pages)).total,
    )
    # A back end may decline a number of pages, which is known only now.
    pool = replace(limits, num_blocks=size.num_pages)
    Kernels.choose(kernels.backend, config, pool, dtype, page_dtype)
    limits = replace(limits, num_blocks=size.num_blocks)
    if jax.default_backend() == "cpu":
        pages = size.num_pages * layout.bytes_per_page
        require_memory(pages, size.option, getattr(options, size.option), "the cache")
    memory = _memory(options, limits, num_host_blocks)
    programs = table(num_pages=size.num_pages)
    if available is not None:
        pages = size.num_pages * layout.bytes_per_page
        claim(pages + step_memory(programs).total, device_bytes, size.option)
    if not options.enforce_eager:
        programs.compile_all(partial(_note, weights, progress))
    runner = Runner(
        weights.arrays(),
        config,
        limits,
        layout=layout,
        num_pages=size.num_pages,
        programs=programs,
        num_host_blocks=num_host_blocks,
    )
    preemption = Preemption()
    if num_host_blocks:
        preemption = Preemption.measured(options.preemption_mode, runner)
    return Engine(limits, memory, InputBuilder(limits, buckets, memory), runner, policy, preemption)


def _memory_beside(weights: Weights, device: Any) -> DeviceMemory | None:
    if DeviceMemory.of(device) is None:
        return None
    weights.arrays()
    return DeviceMemory.of(device)


def _note(weights: Weights, progress: Progress, done: int, total: int) -> None:
    """Between programs: weights that cannot be read need no more of them."""
    weights.check()
    if progress is not None:
        progress(done, total)


def _memory(options: EngineConfig, limits: Limits, num_host_blocks: int) -> BlockManager:
    rows, columns = limits.max_num_seqs, limits.max_blocks_per_seq
    if options.allocation == "contiguous":
        return ContiguousManager(
            limits.num_blocks, limits.block_size, max_rows=rows, max_blocks_per_row=columns
        )
    return BlockManager(
        limits.num_blocks,
        limits.block_size,
        max_rows=rows,
        max_blocks_per_row=columns,
        caching=options.enable_prefix_caching,
        num_host_blocks=num_host_blocks,
    )


def check_sizes(config: ModelConfig, options: EngineConfig, dtype: np.dtype) -> None:
    """Raise the ValueError that `build_engine` would raise for sizes, before weights are read."""
    Policy.of(options, _limits(config, options, dtype).max_model_len)


def _limits(config: ModelConfig, options: EngineConfig, dtype: np.dtype) -> Limits:
    """All but the number of pages, which stays 1 unless it was given."""
    max_model_len, batched, seqs = _sizes(config, options)
    most = config.vocab_size if options.max_logprobs == -1 else options.max_logprobs
    if jax.default_backend() == "cpu":
        _require_step_memory(config, dtype, batched, seqs)
    return Limits(
        max_model_len=max_model_len,
        block_size=options.block_size,
        num_blocks=options.num_gpu_blocks_override or 1,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        max_logprobs=min(most, config.vocab_size),
        max_beam_width=options.max_beam_width,
        chunked_prefill=options.enable_chunked_prefill,
        prefix_caching=options.enable_prefix_caching and options.allocation == "paged",
        seed=options.seed,
        sharing=options.allocation == "paged",
    )


def _require_step_memory(
    config: ModelConfig, dtype: np.dtype, num_tokens: int, num_rows: int
) -> None:
    """For float32 logits, and for gate and up of a layer. A device with memory statistics is asked
    itself, once programs are compiled.
    """
    logits = 4 * config.vocab_size
    gate_up = 2 * config.intermediate_size * dtype.itemsize
    require_memory(num_rows * logits, "max_num_seqs", num_rows, "logits")
    require_memory(num_tokens * gate_up, "max_num_batched_tokens", num_tokens, "one layer")


def _sizes(config: ModelConfig, options: EngineConfig) -> tuple[int, int, int]:
    """max_model_len, max_num_batched_tokens and max_num_seqs with their defaults."""
    on_cpu = jax.default_backend() == "cpu"
    max_model_len = _max_model_len(config, options)
    batched = options.max_num_batched_tokens or _default_batched(on_cpu, options, max_model_len)
    return max_model_len, batched, options.max_num_seqs or min(64 if on_cpu else 256, batched)


def auto_dtype(stored: np.dtype) -> np.dtype:
    """What the option dtype="auto" is for weights stored as `stored`: float32 on the CPU; else that
    type, and bfloat16 for float32 and wider, which is said in the log.
    """
    if jax.default_backend() == "cpu":
        return np.dtype(np.float32)
    if stored.itemsize == 2:
        return stored
    logger.warning(
        "dtype='auto': weights of type %s are used as bfloat16; dtype='float32' keeps them", stored
    )
    return np.dtype(jax.numpy.bfloat16)


def resolve_dtype(name: str, auto: Any) -> np.dtype:
    """The numpy type of an option; `auto` stands for "auto"."""
    return np.dtype(jax.numpy.dtype(auto if name == "auto" else DTYPES.get(name, name)))


def _max_model_len(config: ModelConfig, options: EngineConfig) -> int:
    most = config.derived_max_len
    wanted = options.max_model_len
    if wanted is None:
        return most
    if wanted > most:
        raise ValueError(f"max_model_len={wanted} must be at most {most}, the model's own limit")
    return wanted


def _default_batched(on_cpu: bool, options: EngineConfig, max_model_len: int) -> int:
    default = 512 if on_cpu else 2048
    least = options.max_num_seqs or 1
    if not options.enable_chunked_prefill:
        least = max(least, max_model_len)
    return max(default, least)
