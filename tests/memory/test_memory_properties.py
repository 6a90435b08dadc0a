"""Random operations beside a naive model, and faults planted to see that this finds them."""

from __future__ import annotations

import hashlib
import importlib
import random
from collections.abc import Callable, Hashable

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from memory_driver import SIZES, DriverFailure
from planted_bugs import PLANTED
from swap_driver import HOST_SIZES, SwapDriver, drive

from paxkv.memory import BlockManager

importlib.import_module("planted_swap_bugs")  # adds its own to PLANTED

Operation = Callable[[SwapDriver], None]


@pytest.mark.parametrize("seed", range(10))
def test_random_operations(seed: int) -> None:
    driver = drive(5_000, seed, invariants=8)
    for what in ("hits", "refused", "withdrawn", "reorder", "preempt", "reset"):
        assert driver.done[what], f"no {what}: the driver proves nothing about it"
    assert driver.bm.stats().evictions
    if driver.bm.swap.num_blocks:
        assert driver.done["moved in"]
        assert driver.done["shared"]


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


OPERATIONS = (
    SwapDriver.admit_new,
    SwapDriver.admit_waiting,
    SwapDriver.decode,
    SwapDriver.continue_prefill,
    SwapDriver.fork,
    SwapDriver.reorder,
    SwapDriver.end,
    SwapDriver.preempt,
    SwapDriver.step,
    SwapDriver.reset,
    SwapDriver.swap_out,
    SwapDriver.swap_in,
    SwapDriver.land,
    SwapDriver.discard,
)


ROUNDS = (
    ("admit_new", "continue_prefill", "step") * 3,
    ("decode", "step") * 4,
    ("step", "fork", "decode", "end", "admit_new", "fork", "step", "decode", "preempt") * 2,
    ("admit_new", "admit_new", "admit_waiting", "step", "end") * 3,
    ("swap_out", "step", "land", "swap_in", "step") * 2,
    ("fork", "swap_out", "swap_out", "step", "land", "admit_new", "swap_in", "swap_in", "step"),
)
"""What a scheduler does all day, so that the pool fills up."""


class MemoryMachine(RuleBasedStateMachine):
    """The driver's operations in an order that hypothesis chooses and shrinks."""

    @initialize(
        size=st.sampled_from(SIZES), max_rows=st.integers(4, 9), host=st.sampled_from(HOST_SIZES)
    )
    def start(self, size: tuple[int, int], max_rows: int, host: int) -> None:
        bm = BlockManager(*size, max_rows=max_rows, num_host_blocks=host)
        self.driver = SwapDriver(bm, random.Random(0))

    @rule(call=st.sampled_from(OPERATIONS), seed=st.integers(0, 2**16))
    def operation(self, call: Operation, seed: int) -> None:
        self.driver.rng = random.Random(seed)
        call(self.driver)
        self.driver.check()

    @rule(names=st.sampled_from(ROUNDS), seed=st.integers(0, 2**16))
    def round(self, names: tuple[str, ...], seed: int) -> None:
        self.driver.rng = random.Random(seed)
        for name in names:
            getattr(self.driver, name)()
            self.driver.check()

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.end_everything()


def run_machine(examples: int, **options: object) -> None:
    limits = settings(max_examples=examples, stateful_step_count=40, database=None, **options)  # type: ignore[arg-type]
    run_state_machine_as_test(MemoryMachine, settings=limits)


def test_any_order_of_operations() -> None:
    run_machine(20)


FOUND_BY_HYPOTHESIS = [
    "dropped_decrement",
    "hit_without_reference",
    "hit_stays_evictable",
    "fork_without_reference",
    "freed_twice",
    "hits_counted_as_room",
    "pinned_before_the_check",
    "newest_evicted_first",
    "heads_evicted_before_tails",
    "evicted_page_stays_in_the_index",
    "shared_tail_written_in_place",
    "copy_skipped",
    "hash_without_parent",
    "salt_ignored",
    "partial_block_published",
    "fork_forgets_the_device_table",
    "half_filled_tail_shared",
    "host_decrement_dropped",
    "wrong_host_page",
]


@pytest.mark.parametrize("name", FOUND_BY_HYPOTHESIS)
def test_a_planted_bug_is_found_by_hypothesis(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[name](monkeypatch)
    with pytest.raises(AssertionError):
        run_machine(100, phases=[Phase.generate])
