"""The contiguous allocators against naive ones that look at every slot."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.studies.paging.reserving import (
    ReservingMemory,
    maximum,
    next_power_of_two,
    true_length,
)
from benchmarks.studies.paging.slot_pools import BuddyPool, FirstFitPool
from benchmarks.studies.paging.trace import Lengths

# A positive number asks for so many slots, another lets go of one of the runs held.
ACTIONS = st.lists(st.integers(-20, 20), max_size=60)


def drive(pool, actions, expected_start):
    """Play `actions`; `expected_start(free, count)` is where a run must begin, None for nowhere."""
    free = [True] * pool.num_slots
    held: dict[int, int] = {}
    for action in actions:
        if action > 0:
            size = pool.rounded(action)
            wanted = expected_start(free, action)
            start = pool.allocate(action)
            assert (start is None) == (not wanted)
            if start is None:
                continue
            assert start in wanted
            free[start : start + size] = [False] * size
            held[start] = size
        elif held:
            start = sorted(held)[action % len(held)]
            pool.release(start)
            size = held.pop(start)
            free[start : start + size] = [True] * size
    for start in held:
        pool.release(start)


@given(st.integers(1, 100), ACTIONS)
def test_first_fit_takes_the_first_gap(num_slots, actions):
    def first(free, count):
        starts = [s for s in range(len(free) - count + 1) if all(free[s : s + count])]
        return set(starts[:1])

    pool = FirstFitPool(num_slots)
    drive(pool, actions, first)
    assert pool.allocate(num_slots) == 0


@given(st.integers(1, 100), ACTIONS)
def test_buddies_find_every_free_aligned_run(num_slots, actions):
    def aligned(free, count):
        size = 1
        while size < count:
            size *= 2
        starts = range(0, len(free) - size + 1, size)
        return {start for start in starts if all(free[start : start + size])}

    pool = BuddyPool(num_slots)
    drive(pool, actions, aligned)
    largest = 1 << (num_slots.bit_length() - 1)
    assert pool.allocate(largest) == 0


@pytest.mark.parametrize(
    ("reservation", "expected"), [(maximum, 64), (true_length, 35), (next_power_of_two, 42)]
)
def test_what_is_set_aside(reservation, expected):
    lengths = Lengths(prompt=10, output=25)
    assert reservation(lengths, 64) == expected
    assert reservation(Lengths(10, 40), 64) <= 64
    memory = ReservingMemory(FirstFitPool(128), reservation, [lengths], 64, max_rows=2)
    assert memory.allocate([0] * 10, chain=0, first_chunk=4).num_new_tokens == 4
    assert (memory.room(0), memory.reserved(0)) == (expected - 4, expected)


@settings(max_examples=30)
@given(st.integers(1, 5000))
def test_buddies_round_up_to_powers_of_two(count):
    rounded = BuddyPool(8192).rounded(count)
    assert rounded.bit_count() == 1
    assert rounded / 2 < count <= rounded
