"""Times of what ran on a GPU, from JAX's profiler."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax


def seconds_per_call(queue: Callable[[], Any], calls: int) -> list[float]:
    """Run `queue`, which makes `calls` equal calls of compiled functions and waits for them, and
    return what each took on the device: the sum of its kernels and copies, without the gaps.

    Raises RuntimeError if the profiler says nothing of the device, or not the same of each call.
    """
    options = jax.profiler.ProfileOptions()
    options.host_tracer_level = 0
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder, profiler_options=options)
        try:
            queue()
        finally:
            jax.profiler.stop_trace()
        planes = [
            plane
            for path in Path(folder).rglob("*.xplane.pb")
            for plane in jax.profiler.ProfileData.from_file(str(path)).planes
        ]
        return split(durations(planes), calls)


def durations(planes: Iterable[Any]) -> list[float]:
    """Seconds of each event on a stream of a GPU, in the order in which they started."""
    events = [
        (event.start_ns, event.duration_ns)
        for plane in planes
        if plane.name.startswith("/device:GPU:")
        for line in plane.lines
        # Others sum the same events up by module, operation or step.
        if line.name.startswith("Stream")
        for event in line.events
    ]
    return [nanoseconds / 1e9 for _, nanoseconds in sorted(events)]


def split(durations: list[float], calls: int) -> list[float]:
    """Sums of the durations of consecutive calls of equally many events."""
    each, rest = divmod(len(durations), calls)
    if not each or rest:
        raise RuntimeError(f"{len(durations)} events on the device in {calls} calls")
    return [sum(durations[call * each : (call + 1) * each]) for call in range(calls)]
