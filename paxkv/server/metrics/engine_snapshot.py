"""EngineSnapshot: engine statistics for /metrics, taken between two steps."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np

from paxkv.engine.engine import Engine
from paxkv.engine.request import Request
from paxkv.engine.runner.device_memory import DeviceMemory
from paxkv.engine.scheduler.scheduler import Scheduler
from paxkv.engine.stats import EngineStats
from paxkv.memory import BlockManager

State = Literal["running", "swapped", "waiting"]


@dataclass(frozen=True)
class EngineSnapshot:
    """stats: the engine's. running, waiting, swapped: requests, each in one of them.
    fragmentation: slots of the pages in use for each slot that is filled.
    cache_options: of the configuration, as text."""

    stats: EngineStats
    running: int
    waiting: int
    swapped: int
    fragmentation: float
    cache_options: dict[str, str]

    @classmethod
    def of(cls, engine: Engine) -> EngineSnapshot:
        states = Counter(request_states(engine.scheduler).values())
        return cls(
            stats=engine.stats(),
            running=states["running"],
            waiting=states["waiting"],
            swapped=states["swapped"],
            fragmentation=fragmentation(engine.block_manager),
            cache_options={
                "block_size": str(engine.config.block_size),
                "bytes_per_block": str(engine.runner.page_bytes),
                "enable_prefix_caching": str(engine.config.enable_prefix_caching),
            },
        )


def fragmentation(memory: BlockManager) -> float:
    """Slots of the pages in use over slots that hold a token; 1 when nothing is in use."""
    rows = memory.live_rows
    if not len(rows):
        return 1.0
    size = memory.block_size
    pages, columns = memory.flat_pages(rows)
    tokens = memory.num_tokens[rows]
    left = np.repeat(tokens, -(-tokens // size)) - columns * size
    filled = np.zeros(memory.num_blocks + 1, np.int64)
    np.maximum.at(filled, pages, np.minimum(left, size))
    return float(np.count_nonzero(filled) * size / max(1, filled.sum()))


def memory_utilization() -> float:
    """Share of the device's memory in use; on the CPU, this process's share of the machine's."""
    import jax

    memory = DeviceMemory.of(jax.local_devices()[0])
    if memory is not None:
        return memory.in_use / memory.size
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) / os.sysconf("SC_PHYS_PAGES")


def request_states(scheduler: Scheduler) -> dict[Request, State]:
    """Every request and its state, by rank: running ones first, then waiting ones.

    A request with a running sequence is running; otherwise, one with a swapped sequence is swapped.
    """
    states: dict[Request, State] = {s.request: "running" for s in scheduler.running}
    swapped = {sequence.request for sequence in scheduler.swapped}
    for sequence in scheduler.waiting:
        request = sequence.request
        states.setdefault(request, "swapped" if request in swapped else "waiting")
    return states
