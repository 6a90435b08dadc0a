"""Assembly of an engine from a model and options."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from paxkv.cache.pages import PageLayout
from paxkv.engine.config import DTYPES, EngineConfig, ResolvedConfig
from paxkv.engine.engine import Engine
from paxkv.engine.fork import mark_in_use, refuse_forked
from paxkv.engine.progress import bar
from paxkv.engine.runner.attention import Kernels
from paxkv.engine.runner.buckets import Buckets
from paxkv.engine.runner.compiler import CompiledPrograms
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
from paxkv.engine.runner.program import Arguments
from paxkv.engine.runner.runner import Runner
from paxkv.engine.scheduler.queues import Preemption
from paxkv.memory import BlockManager, ContiguousManager
from paxkv.models.config import ModelConfig
from paxkv.models.rope import rope_tables
from paxkv.models.weight_store import Weights
from paxkv.models.weights import Tree, abstract_params

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None] | None


def load_engine(
    model: ModelConfig, stored: np.dtype, load: Callable[..., Tree], options: EngineConfig
) -> Engine:
    """Read weights in a thread while programs compile, with progress bars; return the engine.

    stored: the weights' type in the checkpoint. load: `(dtype, vocab_size=…, progress=…)` reads
    them. Raises ValueError like `build_engine`, before weights are read if options alone decide.
    """
    options.resolve(model)
    auto = options.dtype == "auto"
    dtype = auto_dtype(stored) if auto else resolve_dtype(options.dtype, None)
    read = partial(load, dtype, vocab_size=model.vocab_size)
    with (
        bar("Loading weights", "B") as loading,
        bar("Compiling", " programs") as compiling,
        Weights.reading(abstract_params(model, dtype), read, loading) as weights,
    ):
        return build_engine(weights, model, options, compiling)


def build_engine(
    weights: Weights,
    model: ModelConfig,
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
    config = options.resolve(model)
    if jax.default_backend() == "cpu":
        keep_temporaries()
        return_freed()  # by an engine before this one
    dtype = weights.shapes["embed"].dtype
    page_dtype = resolve_dtype(config.kv_cache_dtype, dtype)
    _require_step_memory(config, model, dtype)
    kernels = Kernels.choose(model, config, dtype, page_dtype)
    layout = PageLayout.of(model, config.block_size, page_dtype, kernels.page_layout)
    choose = Buckets.single if config.deterministic else Buckets.choose
    buckets = choose(config.max_num_seqs, config.max_num_batched_tokens)
    num_host_blocks = host_blocks(layout, config)
    arguments = partial(
        Arguments,
        weights.shapes,
        model,
        config,
        ropes=rope_tables(model, config.max_model_len),
        layout=layout,
        buckets=buckets,
        kernels=kernels,
        swapping=num_host_blocks > 0,
    )
    available = _memory_beside(weights, device or jax.local_devices()[0])
    size = pool_size(
        layout,
        config,
        available,
        lambda num_pages: step_memory(CompiledPrograms(arguments(num_pages=num_pages))).total,
    )
    # A back end may decline a number of pages, which is known only now.
    kernels.check(model, replace(config, num_gpu_blocks=size.num_pages), dtype, page_dtype)
    config = replace(config, num_gpu_blocks=size.num_blocks)
    if jax.default_backend() == "cpu":
        pages = size.num_pages * layout.bytes_per_page
        require_memory(pages, size.option, getattr(config, size.option), "the cache")
    memory = _memory(config, num_host_blocks)
    programs = CompiledPrograms(arguments(num_pages=size.num_pages))
    if available is not None:
        pages = size.num_pages * layout.bytes_per_page
        claim(pages + step_memory(programs).total, device_bytes, size.option)
    if not config.enforce_eager:
        programs.compile_all(partial(_note, weights, progress))
    runner = Runner(
        weights.arrays(),
        model,
        config,
        layout=layout,
        num_pages=size.num_pages,
        programs=programs,
        num_host_blocks=num_host_blocks,
    )
    preemption = Preemption()
    if num_host_blocks:
        preemption = Preemption.measured(config.preemption_mode, runner)
    return Engine(config, memory, InputBuilder(config, buckets, memory), runner, preemption)


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


def _memory(config: ResolvedConfig, num_host_blocks: int) -> BlockManager:
    rows, columns = config.max_num_seqs, config.max_blocks_per_seq
    if not config.shares_pages:
        return ContiguousManager(
            config.num_gpu_blocks, config.block_size, max_rows=rows, max_blocks_per_row=columns
        )
    return BlockManager(
        config.num_gpu_blocks,
        config.block_size,
        max_rows=rows,
        max_blocks_per_row=columns,
        caching=config.enable_prefix_caching,
        num_host_blocks=num_host_blocks,
    )


def _require_step_memory(config: ResolvedConfig, model: ModelConfig, dtype: np.dtype) -> None:
    """For float32 logits, and for gate and up of a layer. A device with memory statistics is asked
    itself, once programs are compiled.
    """
    if jax.default_backend() != "cpu":
        return
    for name, bytes_each, what in (
        ("max_num_seqs", 4 * model.vocab_size, "logits"),
        ("max_num_batched_tokens", 2 * model.intermediate_size * dtype.itemsize, "one layer"),
    ):
        count = getattr(config, name)
        require_memory(count * bytes_each, name, count, what)


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
