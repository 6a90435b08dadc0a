"""Random operations beside a naive model, and faults planted to see that this finds them."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Hashable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from memory_driver import SIZES, DriverFailure, MemoryDriver, drive
from planted_bugs import PLANTED

from paxkv.memory import BlockManager


@pytest.mark.parametrize("seed", range(10))
def test_random_operations(seed: int) -> None:
    driver = drive(5_000, seed, invariants=8)
    for what in ("hits", "refused", "withdrawn", "reorder", "preempt", "reset"):
        assert driver.done[what], f"no {what}: the driver proves nothing about it"
    assert driver.bm.stats().evictions


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 120))
def test_five_million_random_operations(seed: int) -> None:
    drive(250_000, seed, invariants=32)


def constant(parent: Hashable, payload: bytes) -> Hashable:
    return 7


def tokens_only(parent: Hashable, payload: bytes) -> Hashable:
    return payload


def few_values(parent: Hashable, payload: bytes) -> Hashable:
    return hashlib.sha256(repr((parent, payload)).encode()).digest()[0] % 5


@pytest.mark.parametrize("block_hash", [constant, tokens_only, few_values])
def test_a_broken_hash_never_gives_wrong_content(block_hash: object) -> None:  # PC-01
    for seed in range(3):
        drive(1_000, seed, invariants=8, block_hash=block_hash)


def drive_many(seeds: int) -> None:
    for seed in range(seeds):
        drive(1_000, seed, invariants=0)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the naive model and the device alone, without `check_invariants`."""
    PLANTED[name](monkeypatch)
    with pytest.raises(DriverFailure):
        drive_many(seeds=20)


class MemoryMachine(RuleBasedStateMachine):
    """The driver's operations, chosen and shrunk by hypothesis."""

    @initialize(size=st.sampled_from(SIZES), max_rows=st.integers(2, 8))
    def start(self, size: tuple[int, int], max_rows: int) -> None:
        num_blocks, block_size = size
        self.driver = MemoryDriver(
            BlockManager(num_blocks, block_size, max_rows=max_rows), random.Random(0)
        )

    @rule(
        call=st.sampled_from(
            [
                MemoryDriver.admit_new,
                MemoryDriver.admit_waiting,
                MemoryDriver.decode,
                MemoryDriver.continue_prefill,
                MemoryDriver.fork,
                MemoryDriver.reorder,
                MemoryDriver.end,
                MemoryDriver.preempt,
                MemoryDriver.step,
                MemoryDriver.reset,
            ]
        ),
        rng=st.randoms(use_true_random=False),
    )
    def operation(self, call: object, rng: random.Random) -> None:
        self.driver.rng = rng
        call(self.driver)  # type: ignore[operator]

    @invariant()
    def state_is_right(self) -> None:
        if hasattr(self, "driver"):
            self.driver.check()

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.rng = random.Random(0)
            self.driver.end_everything()


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
