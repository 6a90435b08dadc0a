"""`host_seconds_per_step` is the host's own time: what the device takes is counted apart."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.engine.tiny import Tiny, greedy, ids

SLOW = 0.05
STEPS = 4


def slowed(call: Callable[..., Any]) -> Callable[..., Any]:
    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(SLOW)
        return call(*args, **kwargs)

    return slow


def seconds(tiny: Tiny) -> tuple[float, float]:
    """Host and device seconds a step, of a warm engine."""
    before, device = tiny.engine.stats(), tiny.engine.runner.device_seconds
    tiny.tokens(ids(9), greedy(STEPS, presence_penalty=1.0, prompt_logprobs=1))
    after = tiny.engine.stats()
    spent = [s.host_seconds_per_step * s.num_steps for s in (before, after)]
    steps = after.num_steps - before.num_steps
    assert steps >= STEPS
    return (spent[1] - spent[0]) / steps, (tiny.engine.runner.device_seconds - device) / steps


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    found = Tiny()
    seconds(found)
    return found


def test_a_slow_launch_is_the_devices_time(tiny: Tiny) -> None:
    tiny.engine.runner.hooks.before_launch = lambda step: time.sleep(SLOW)
    host, device = seconds(tiny)
    tiny.engine.runner.hooks.before_launch = None
    assert device >= SLOW > 2 * host > 0


@pytest.mark.parametrize("name", ["_sample", "_count", "_score"])
def test_slow_samples_counts_and_scores_are_the_devices_time(
    tiny: Tiny, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = tiny.engine.runner
    monkeypatch.setattr(runner, name, slowed(getattr(runner, name)))
    host, device = seconds(tiny)
    assert device >= SLOW / (STEPS + 1)
    assert host < SLOW / (STEPS + 1)


def test_waiting_for_tokens_is_the_devices_time(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SlowToRead:
        asarray = staticmethod(slowed(np.asarray))

        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

    monkeypatch.setattr("paxkv.engine.runner.results.np", SlowToRead())
    host, device = seconds(tiny)
    assert device >= SLOW > 2 * host


def test_slow_scheduling_is_the_hosts_time(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = tiny.engine.scheduler
    monkeypatch.setattr(scheduler, "schedule", slowed(scheduler.schedule))
    host, device = seconds(tiny)
    assert host >= SLOW > 2 * device
