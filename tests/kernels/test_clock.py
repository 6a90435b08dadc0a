"""Which clock a time comes from, and what is made of the profiler's events."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels.lab import device_events
from pallas_kernels.lab.clock import DEVICE_EVENTS, WALL_CLOCK, measure
from pallas_kernels.lab.device_events import durations, seconds_per_call, split

DOUBLE = jax.jit(lambda x: x + x)
INPUTS = [{"x": jnp.ones(8)}]


def plane(name: str, **lines: list[tuple[float, float]]) -> Any:
    """A profiler's plane; each event is (start, duration) in nanoseconds."""
    return SimpleNamespace(
        name=name,
        lines=[
            SimpleNamespace(
                name=line.replace("_", " "),
                events=[SimpleNamespace(start_ns=s, duration_ns=d) for s, d in events],
            )
            for line, events in lines.items()
        ],
    )


def test_events_of_the_streams_count_and_of_nothing_else() -> None:
    found = durations(
        [
            plane("/host:CPU", Stream_1=[(0, 1e9)]),
            plane("/device:GPU:0", Stream_13=[(30, 3e9), (10, 1e9)], XLA_Ops=[(10, 7e9)]),
            plane("/device:GPU:0", Stream_14=[(20, 2e9)]),
        ]
    )
    assert found == [1, 2, 3]


def test_a_call_is_the_sum_of_its_events() -> None:
    assert split([1, 2, 3, 4, 5, 6], 3) == [3, 7, 11]
    with pytest.raises(RuntimeError, match="5 events on the device in 2 calls"):
        split([1, 2, 3, 4, 5], 2)
    with pytest.raises(RuntimeError, match="0 events"):
        split([], 1)


def test_the_profiler_says_nothing_of_a_device_that_is_not_there() -> None:
    with pytest.raises(RuntimeError, match="0 events on the device in 2 calls"):
        seconds_per_call(lambda: [DOUBLE(**INPUTS[0]).block_until_ready() for _ in "ab"], 2)


def test_a_real_trace_is_read(tmp_path: Path) -> None:
    """The CPU's lines as if they were a GPU's: names of the profiler's fields are JAX's."""
    with jax.profiler.trace(str(tmp_path)):
        DOUBLE(**INPUTS[0]).block_until_ready()
    (path,) = tmp_path.rglob("*.xplane.pb")
    found = []
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        lines = [SimpleNamespace(name="Stream", events=line.events) for line in plane.lines]
        found += durations([SimpleNamespace(name="/device:GPU:0", lines=lines)])
    assert found
    assert min(found) >= 0
    assert max(found) > 0


def test_a_gpu_is_timed_by_its_events(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert measure(DOUBLE, INPUTS, least=1e-4).clock == WALL_CLOCK
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    def found(queue: Any, calls: int) -> list[float]:
        queue()
        return [3.0] * (calls - 1) + [6.0]

    monkeypatch.setattr(device_events, "seconds_per_call", found)
    timing = measure(DOUBLE, INPUTS, least=1e-4)
    assert (timing.seconds, timing.spread, timing.clock) == (3.0, 2.0, DEVICE_EVENTS)

    def fails(queue: Any, calls: int) -> list[float]:
        raise RuntimeError("no profiler today")

    monkeypatch.setattr(device_events, "seconds_per_call", fails)
    assert measure(DOUBLE, INPUTS, least=1e-4).clock == WALL_CLOCK
    assert "no profiler today" in caplog.text
