"""Time of a function on the device: warm, medians, inputs rotated past the caches."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from pallas_kernels.lab import device_events

# More than the L2 cache of any chip holds, several times; bytes.
ROTATED = 1 << 28
DEVICE_EVENTS = "device events"
WALL_CLOCK = "wall clock"
# Calls whose events are looked at.
_LEAST_CALLS, _MOST_CALLS = 10, 200

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Timing:
    """seconds: median of one call. calls: how many were timed together. spread: of the medians'
    sample, largest over smallest. clock: `DEVICE_EVENTS` or `WALL_CLOCK`.
    """

    seconds: float
    calls: int
    spread: float
    clock: str


def copies_for(nbytes: int) -> int:
    """How many sets of inputs of so many bytes each to rotate, so that none is still cached;
    one that is larger than the cache is enough."""
    if jax.default_backend() == "cpu":
        return 1
    return max(1, -(-ROTATED // max(1, nbytes)))


def measure(
    function: Callable[..., Any],
    inputs: Sequence[dict[str, Any]],
    *,
    repeats: int = 5,
    least: float = 0.02,
) -> Timing:
    """By the device's own events on a GPU: the kernels of a call, without the gaps between them.
    By `measure_wall` elsewhere, and where the profiler does not work; the result says which.
    """
    wall = measure_wall(function, inputs, repeats=repeats, least=least)
    if jax.default_backend() != "gpu":
        return wall
    calls = min(_MOST_CALLS, max(_LEAST_CALLS, wall.calls))
    try:
        taken = device_events.seconds_per_call(lambda: _queue(function, inputs, calls), calls)
    except Exception as error:
        _log.warning("timed by the wall clock, for the profiler failed: %s", error)
        return wall
    return Timing(statistics.median(taken), calls, max(taken) / min(taken), DEVICE_EVENTS)


def measure_wall(
    function: Callable[..., Any],
    inputs: Sequence[dict[str, Any]],
    *,
    repeats: int = 5,
    least: float = 0.02,
) -> Timing:
    """Median over `repeats` of many calls queued behind each other and waited for once, so that
    what the host does for a call hides behind the device.

    Args:
        inputs: keyword arguments, one set after the other in turn.
        least: seconds that a repeat shall take.
    """
    for given in inputs[:2]:
        jax.block_until_ready(function(**given))
    once = _queue(function, inputs, 1)
    calls = max(1, min(1000, round(least / max(once, 1e-7))))
    taken = [_queue(function, inputs, calls) / calls for _ in range(repeats)]
    return Timing(statistics.median(taken), calls, max(taken) / min(taken), WALL_CLOCK)


def _queue(function: Callable[..., Any], inputs: Sequence[dict[str, Any]], calls: int) -> float:
    start = time.perf_counter()
    last = None
    for call in range(calls):
        last = function(**inputs[call % len(inputs)])
    jax.block_until_ready(last)
    return time.perf_counter() - start
