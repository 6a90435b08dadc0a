"""From a model and options to a running engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from paxkv.cache.pages import PageLayout, grid_down, grid_up
from paxkv.engine.buckets import Buckets
from paxkv.engine.config import DTYPES, EngineConfig, Limits
from paxkv.engine.engine import Engine
from paxkv.engine.host_memory import keep_temporaries
from paxkv.engine.plan import Planner
from paxkv.engine.runner import Runner
from paxkv.memory import BlockManager
from paxkv.models.config import ModelConfig
from paxkv.models.decoder import Rope
from paxkv.models.rope import derived_max_len, rope_parameters

CPU_CACHE_BYTES = 1 << 30
CPU_LAYERS_PER_PROGRAM = 6


def assemble(
    params: dict[str, Any],
    config: ModelConfig,
    options: EngineConfig,
    progress: Callable[[int, int], None] | None = None,
) -> Engine:
    """Allocate pages, compile every program, and return the engine.

    progress: called with (programs compiled, programs in all).
    Raises ValueError if the options contradict each other, the model or the memory.
    """
    on_cpu = jax.default_backend() == "cpu"
    if on_cpu:
        keep_temporaries()
    model_dtype = params["embed"].dtype
    page_dtype = resolve_dtype(options.kv_cache_dtype, model_dtype)
    layout = PageLayout.of(config, options.block_size, page_dtype, keys_by_dim=True)
    max_model_len, batched, seqs = _sizes(config, options)
    num_pages, num_blocks = _pool(layout, options, max_model_len)
    limits = Limits(
        max_model_len=max_model_len,
        block_size=options.block_size,
        num_blocks=num_blocks,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        max_logprobs=min(options.max_logprobs, config.vocab_size),
        chunked_prefill=options.enable_chunked_prefill,
        prefix_caching=options.enable_prefix_caching,
        seed=options.seed,
    )
    memory = BlockManager(
        num_blocks,
        options.block_size,
        max_rows=seqs,
        max_blocks_per_row=limits.max_blocks_per_seq,
        caching=options.enable_prefix_caching,
    )
    choose = Buckets.single if options.deterministic else Buckets.choose
    buckets = choose(seqs, batched)
    inv_freq, factor = rope_parameters(config, max_model_len)
    runner = Runner(
        params,
        config,
        limits,
        rope=Rope(tuple(inv_freq.tolist()), factor),
        layout=layout,
        num_pages=num_pages,
        buckets=buckets,
        layers_per_program=options.layers_per_program
        or (CPU_LAYERS_PER_PROGRAM if on_cpu else config.num_layers),
    )
    if not options.enforce_eager:
        runner.compile_all(progress)
    return Engine(limits, memory, Planner(limits, buckets, memory), runner)


def check_sizes(config: ModelConfig, options: EngineConfig) -> None:
    """Raise the ValueError that `assemble` would raise for sizes, before weights are read."""
    max_model_len, batched, seqs = _sizes(config, options)
    Limits(
        max_model_len=max_model_len,
        block_size=options.block_size,
        num_blocks=options.num_gpu_blocks_override or 1,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        max_logprobs=options.max_logprobs,
        chunked_prefill=options.enable_chunked_prefill,
        prefix_caching=options.enable_prefix_caching,
        seed=options.seed,
    )


def _sizes(config: ModelConfig, options: EngineConfig) -> tuple[int, int, int]:
    """max_model_len, max_num_batched_tokens and max_num_seqs with their defaults."""
    on_cpu = jax.default_backend() == "cpu"
    max_model_len = _max_model_len(config, options)
    batched = options.max_num_batched_tokens or _default_batched(on_cpu, options, max_model_len)
    return max_model_len, batched, options.max_num_seqs or min(64 if on_cpu else 256, batched)


def resolve_dtype(name: str, auto: Any) -> np.dtype:
    """The numpy type of an option; `auto` stands for "auto"."""
    return np.dtype(jax.numpy.dtype(auto if name == "auto" else DTYPES.get(name, name)))


def _max_model_len(config: ModelConfig, options: EngineConfig) -> int:
    most = derived_max_len(config)
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


def _pool(layout: PageLayout, options: EngineConfig, max_model_len: int) -> tuple[int, int]:
    """Pages to allocate (page 0 included) and pages to use."""
    override = options.num_gpu_blocks_override
    if override is not None:
        return grid_up(override + 1), override
    num_bytes = options.kv_cache_memory_bytes
    if num_bytes is None:
        num_bytes = _free_bytes(options)
    num_pages = grid_down(num_bytes // layout.bytes_per_page)
    needed = -(-max_model_len // options.block_size)
    if num_pages - 1 < needed:
        name = "kv_cache_memory_bytes"
        if options.kv_cache_memory_bytes is None and num_bytes != CPU_CACHE_BYTES:
            name = "gpu_memory_utilization"
        raise ValueError(
            f"{name}={getattr(options, name)} leaves {num_bytes / 2**30:.3f} GiB for the cache, "
            f"{max(0, num_pages - 1)} blocks; one sequence of max_model_len={max_model_len} needs "
            f"{needed} blocks, {(needed + 1) * layout.bytes_per_page / 2**30:.3f} GiB: raise "
            f"{name} or lower max_model_len"
        )
    return num_pages, num_pages - 1


def _free_bytes(options: EngineConfig) -> int:
    """Bytes left for pages beside the weights; a fixed figure without memory statistics."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" not in stats:
        return CPU_CACHE_BYTES
    allowed = int(stats["bytes_limit"] * options.gpu_memory_utilization)
    free = allowed - stats["bytes_in_use"]
    if free <= 0:
        raise ValueError(
            f"gpu_memory_utilization={options.gpu_memory_utilization} allows {allowed / 2**30:.3f} "
            f"GiB and {stats['bytes_in_use'] / 2**30:.2f} GiB are in use: raise it, or take a "
            "smaller model; max_model_len decides how much the cache needs beside it"
        )
    return free * 9 // 10
