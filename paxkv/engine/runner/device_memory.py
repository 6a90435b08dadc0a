"""Size of the page pool, from the memory of the device."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from paxkv.cache.pages import PageLayout, grid_down, grid_up
from paxkv.engine.config import ResolvedConfig
from paxkv.engine.runner.compiler import CompiledPrograms
from paxkv.engine.runner.program import ONCE, Variant

logger = logging.getLogger(__name__)

GIB = 1 << 30
CPU_CACHE_BYTES = GIB
PIECE = 64 << 20


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of a device that this process may use, those it uses now, and all it has.

    JAX takes its share of the device when it starts, by default three quarters; more than that
    `limit` it never gets. total: None if the device does not tell.
    """

    limit: int
    in_use: int
    total: int | None = None

    @classmethod
    def of(cls, device: Any) -> DeviceMemory | None:
        """Read a device's statistics; None if it has none, as the CPU."""
        stats = device.memory_stats() or {}
        if "bytes_limit" not in stats:
            return None
        return cls(int(stats["bytes_limit"]), int(stats["bytes_in_use"]), total_memory(device))

    @property
    def size(self) -> int:
        """Bytes of the device, as far as is known."""
        return max(self.limit, self.total or 0)

    def share(self, utilization: float) -> int:
        """Bytes that `gpu_memory_utilization` allows: of the device, within JAX's limit."""
        allowed = int(self.size * utilization)
        if allowed > self.limit:
            logger.warning(
                "gpu_memory_utilization=%g of the device's %s is %s, but JAX was started with %s: "
                "set XLA_PYTHON_CLIENT_MEM_FRACTION=%g before it starts, as paxkv's commands do",
                utilization,
                _gib(self.size),
                _gib(allowed),
                _gib(self.limit),
                utilization,
            )
        return min(allowed, self.limit)


@dataclass(frozen=True)
class PoolSize:
    """num_pages: the arrays' first dimension, on a coarse grid, page 0 included. num_blocks: pages
    that may be used. option: what decided it."""

    num_pages: int
    num_blocks: int
    option: str


def pool_size(
    layout: PageLayout,
    config: ResolvedConfig,
    device: DeviceMemory | None,
    step_bytes: Callable[[int], int],
) -> PoolSize:
    """Size by `num_gpu_blocks_override`, else `kv_cache_memory_bytes`, else the free memory.

    device: None where there are no statistics; the pool is then 1 GiB by default.
    step_bytes: number of pages -> what the largest step takes beside weights and pages.
    Raises ValueError if one sequence of max_model_len has no room, or the device has less memory
    than was asked for; it says how much is missing.
    """
    override = config.num_gpu_blocks_override
    if override is not None:
        size = PoolSize(grid_up(override + 1), override, "num_gpu_blocks_override")
        _require_on_device(config, size, layout, device, step_bytes)
        return size
    needed = config.max_blocks_per_seq
    least = grid_up(needed + 1)
    name, advice, account = "kv_cache_memory_bytes", "max_model_len", ""
    value: Any = config.kv_cache_memory_bytes
    if value is not None:
        num_bytes = value
    elif device is None:
        value = num_bytes = CPU_CACHE_BYTES
    else:
        name, advice = "gpu_memory_utilization", "max_model_len or max_num_batched_tokens"
        value = config.gpu_memory_utilization
        allowed, step = device.share(value), step_bytes(least)
        num_bytes = allowed - device.in_use - step
        account = (
            f" ({_gib(allowed)} of {_limit(device)} allowed, {_gib(device.in_use)} in use by "
            f"weights and others, {_gib(step)} for the largest step)"
        )
    num_pages = grid_down(max(0, num_bytes) // layout.bytes_per_page)
    if num_pages < needed + 1:
        space = least * layout.bytes_per_page
        raise ValueError(
            f"{name}={value} leaves {_gib(max(0, num_bytes))} for the cache"
            f"{account}; one sequence of max_model_len={config.max_model_len} "
            f"needs {needed} blocks, {_gib(space)}, so {_gib(space - num_bytes)} are missing: "
            f"raise {name} or lower {advice}"
        )
    size = PoolSize(num_pages, num_pages - 1, name)
    if config.kv_cache_memory_bytes is not None:
        _require_on_device(config, size, layout, device, step_bytes)
    return size


def _require_on_device(
    config: ResolvedConfig,
    size: PoolSize,
    layout: PageLayout,
    device: DeviceMemory | None,
    step_bytes: Callable[[int], int],
) -> None:
    """Raise ValueError if the device cannot hold the requested number of pages."""
    if device is None:
        return
    pages, step = size.num_pages * layout.bytes_per_page, step_bytes(size.num_pages)
    missing = pages + step + device.in_use - device.limit
    if missing > 0:
        raise ValueError(
            f"{size.option}={getattr(config, size.option)} takes {_gib(pages)} for the cache; "
            f"with {_gib(device.in_use)} in use and {_gib(step)} for the largest step, "
            f"{_gib(missing)} are missing of {_limit(device)}: lower {size.option}"
        )


def _limit(device: DeviceMemory) -> str:
    if device.limit == device.size:
        return f"the device's {_gib(device.size)}"
    return f"the {_gib(device.limit)} of {_gib(device.size)} that JAX was started with"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.3f} GiB"


def claim(num_bytes: int, allocate: Callable[[int], Any], name: str) -> None:
    """Allocate and free the memory that sizing counts on, to fail at start-up, not under load.

    Others may hold memory that a device's statistics do not show. Raises ValueError saying how
    much is missing and blaming the option `name`.
    """
    if _can_have(num_bytes, allocate):
        return
    unit = max(1, num_bytes >> 7)
    low, high = 0, -(-num_bytes // unit)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _can_have(middle * unit, allocate) else (low, middle)
    raise ValueError(
        f"{name} counts on {_gib(num_bytes)} that the device does not give: "
        f"{_gib(num_bytes - low * unit)} are missing, other programs may hold them; lower {name}"
    )


def _can_have(num_bytes: int, allocate: Callable[[int], Any]) -> bool:
    try:
        held = allocate(num_bytes)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return False
    del held
    return True


def device_bytes(num_bytes: int) -> list[jax.Array]:
    """Allocate bytes of the default device, in pieces as large as a page array might be."""
    sizes = [PIECE] * (num_bytes // PIECE) + [num_bytes % PIECE]
    return jax.block_until_ready([jax.numpy.zeros(size, jax.numpy.uint8) for size in sizes])


def require_memory(num_bytes: int, name: str, value: Any, what: str) -> None:
    """Raise ValueError, blaming the option `name`, if this machine lacks memory for `what`.
    Allocating it would kill this process or others.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if num_bytes > memory:
        raise ValueError(
            f"{name}={value} takes {_gib(num_bytes)} for {what}; this machine has "
            f"{_gib(memory)}: lower {name}"
        )


def host_blocks(layout: PageLayout, config: ResolvedConfig) -> int:
    """Pages of host memory for preempted sequences. Raises ValueError if they cannot be had."""
    if config.preemption_mode == "recompute" or config.allocation == "contiguous":
        return 0
    name, num_blocks = "num_cpu_blocks_override", config.num_cpu_blocks_override
    if num_blocks is None:
        name, num_blocks = "swap_space", int(config.swap_space * GIB / layout.bytes_per_page)
        if config.swap_space and not num_blocks:
            raise ValueError(
                f"swap_space={config.swap_space} GiB holds no block; one takes "
                f"{layout.bytes_per_page / GIB:.3g} GiB"
            )
    needed = num_blocks * layout.bytes_per_page
    require_memory(needed, name, getattr(config, name), "preempted sequences")
    return num_blocks


@dataclass(frozen=True)
class StepMemory:
    """Bytes beside weights and pages. state: kept between steps. transient: needed by the
    largest step and its sampler on top."""

    state: int
    transient: int

    @property
    def total(self) -> int:
        return self.state + self.transient


def step_memory(compiled: CompiledPrograms) -> StepMemory:
    """Compiles programs in flight: the largest step of each kind, the largest sample, the scores.

    Counted are temporaries, of which one program's live at a time; results and inputs twice, as a
    step is launched before the one before it is read; and the code of all programs, each taken to
    be as large as the largest.
    """
    arguments = compiled.arguments
    steps: dict[Any, list[Any]] = {shape: [] for shape in arguments.largest_steps}
    samples = []
    for program, variant in compiled.all():
        if variant.shape in steps:
            steps[variant.shape].append(compiled.get(program, variant))
        elif program.in_flight and variant in (ONCE, Variant(rows=arguments.largest_sample)):
            samples.append(compiled.get(program, variant))
    programs = [program for step in steps.values() for program in step] + samples
    analyses = [program.memory_analysis() for program in programs]
    temporary = max(analysis.temp_size_in_bytes for analysis in analyses)
    code = max(analysis.generated_code_size_in_bytes for analysis in analyses)
    results = max(sum(map(new_bytes, step)) for step in steps.values())
    results += sum(map(new_bytes, samples))
    transient = temporary + 2 * (results + arguments.input_bytes) + code * len(list(compiled.all()))
    return StepMemory(array_bytes(arguments.state), int(transient))


def new_bytes(program: Any) -> int:
    """Bytes of the results of a compiled program that do not take an argument's place."""
    analysis = program.memory_analysis()
    return max(0, int(analysis.output_size_in_bytes - analysis.alias_size_in_bytes))


def array_bytes(tree: Any) -> int:
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def total_memory(device: Any) -> int | None:
    """Bytes, asked of the CUDA driver; None for another device, or without a driver."""
    if getattr(device, "platform", None) != "gpu":
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:  # not NVIDIA's
        return None
    handle, found = ctypes.c_int(), ctypes.c_size_t()
    for status in (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(handle), device.local_hardware_id),
        driver.cuDeviceTotalMem_v2(ctypes.byref(found), handle),
    ):
        if status != 0:
            return None
    return found.value
