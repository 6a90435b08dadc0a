"""The fastest configuration of a step, found by timing: one field after the other, from the
default on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax

from pallas_kernels import tuned
from pallas_kernels.api import ragged_paged_attention
from pallas_kernels.contract import AttentionInputs, call_of
from pallas_kernels.dispatch import Call, choose
from pallas_kernels.lab.bench import Step
from pallas_kernels.lab.clock import copies_for, measure
from pallas_kernels.triton import Config

# What is tried of each field of a tile.
FIELDS: dict[str, tuple[int, ...]] = {
    "keys": (16, 32, 64, 128, 256),
    "num_warps": (2, 4, 8),
    "num_stages": (1, 2, 3, 4),
    "splits": (1, 2, 4, 8, 16, 32),
}


@dataclass(frozen=True)
class Tuned:
    """config: the best found. default, best: seconds of the default and of it. tried: how many."""

    config: Any
    default: float
    best: float
    tried: int


def autotune(
    step: Step,
    path: Path,
    *,
    budget: float = 300.0,
    told: Callable[[str], None] = print,
) -> Tuned:
    """Time the Triton kernel's configurations for at most `budget` seconds, and store the best in
    the cache at `path`.

    Raises:
        NotImplementedError: the kernel does not take the step.
    """
    deadline = time.monotonic() + budget
    inputs = [step.arrays(seed) for seed in range(copies_for(step.page_bytes))]
    call = call_of(AttentionInputs(**inputs[0]))
    choose("triton", call)
    config = default = Config.by_heuristics(call)
    part = "decode" if step.new == 1 else "prefill"
    seconds = start = _seconds(config, inputs)
    tried = 1
    for field, values in FIELDS.items():
        for value in values:
            if time.monotonic() > deadline or value == getattr(getattr(default, part), field):
                continue
            if not _sensible(field, value, part, call):
                continue
            changed = replace(config, **{part: replace(getattr(config, part), **{field: value})})
            tried += 1
            try:
                found = _seconds(changed, inputs)
            except Exception as error:
                lines = str(error).strip().splitlines() or [type(error).__name__]
                told(f"{part} {field}={value}: {lines[0][:120]}")
                continue
            told(f"{part} {field}={value}: {found * 1e6:.1f} µs")
            if found < seconds:
                config, seconds = changed, found
    tuned.store(path, call, config, seconds)
    return Tuned(config, start, seconds, tried)


def _sensible(field: str, value: int, part: str, call: Call) -> bool:
    """Splits are for decoding; a split has 64 keys at least."""
    if field != "splits":
        return True
    return part == "decode" and value * 64 <= max(64, call.max_pages * call.page_size)


def _seconds(config: Any, inputs: list[dict[str, Any]]) -> float:
    attend = jax.jit(partial(ragged_paged_attention, backend="triton", config=config))
    return measure(attend, inputs).seconds
