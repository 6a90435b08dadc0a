"""Memory that reserves the maximum length for every sequence."""

from __future__ import annotations

import numpy as np
import pytest

from paxkv.memory import ContiguousManager


def manager(num_blocks: int = 22, max_rows: int = 8) -> ContiguousManager:
    return ContiguousManager(num_blocks, 4, max_rows=max_rows, max_blocks_per_row=5)


def test_a_sequence_has_the_pages_of_the_longest_and_no_more_fit_than_reservations() -> None:
    memory = manager()
    rows = [memory.allocate([1] * 3).row for _ in range(4)]
    assert memory.allocate([1]) is None
    assert memory.num_free_blocks == 2
    for row in rows:
        pages = memory.row_pages(row)
        assert len(pages) == 5
        assert np.all(np.diff(pages) == 1)
    assert len({int(page) for row in rows for page in memory.row_pages(row)}) == 20
    memory.check_invariants()


def test_reservations_stay_contiguous_however_sequences_come_and_go() -> None:
    memory = manager(30)
    random = np.random.default_rng(0)
    live: list[int] = []
    for _ in range(400):
        if live and random.random() < 0.5:
            memory.free(live.pop(random.integers(len(live))))
        elif (allocation := memory.allocate([1] * int(random.integers(1, 21)))) is not None:
            live.append(allocation.row)
            assert np.all(np.diff(memory.row_pages(allocation.row)) == 1)
        memory.check_invariants()
    for row in live:
        memory.free(row)
    assert memory.num_free_blocks == 30


def test_growing_takes_nothing() -> None:
    memory = manager()
    allocation = memory.allocate([1] * 9, first_chunk=4, headroom=99)
    assert (allocation.num_cached_tokens, allocation.num_new_tokens) == (0, 4)
    row, free = allocation.row, memory.num_free_blocks
    assert memory.blocks_needed([row]) == 0
    assert memory.room(row) == 20
    memory.append(row, 5)
    memory.append_batch([row])
    assert memory.num_free_blocks == free
    assert memory.slots([row, row], [0, 19])[1] - memory.slots([row], [0])[0] == 19


def test_what_does_not_work_says_so() -> None:
    memory = manager()
    with pytest.raises(ValueError, match="token_ids has 21 tokens; it must have 1 to 20"):
        memory.allocate([1] * 21)
    row = memory.allocate([1]).row
    with pytest.raises(ValueError, match="cannot be shared"):
        memory.fork(row, 1)
    with pytest.raises(ValueError, match="num_blocks=4 must be at least 5"):
        manager(4)
