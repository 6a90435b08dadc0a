"""Bug bank, block manager and copy-on-write."""

from __future__ import annotations

import gc
from weakref import ref

import numpy as np
import pytest

from paxkv.memory import BlockManager
from tests.engine.tiny import greedy, ids
from tests.regressions.engines import assert_dense, assert_idle, small, tokens


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 7])
def test_bm_01_abort_ends_all_children(n: int, steps: int) -> None:
    tiny = small()
    other = tiny.add(ids(5, salt=9), greedy(12))
    request = tiny.add(ids(9), greedy(40, n=n))
    for _ in range(steps):
        tiny.engine.step()
    tiny.engine.abort(request.request_id)
    assert request.finished
    assert request.finished_time is not None
    assert {s.finish.finish_reason for s in request.sequences} == {"abort"}
    assert len(tiny.engine.block_manager.live_rows) <= 1
    lengths = [len(s.token_ids) for s in request.sequences]
    tiny.run()
    assert [len(s.token_ids) for s in request.sequences] == lengths, "an aborted child went on"
    assert_dense(ids(5, salt=9), tokens(other.output()))
    assert_idle(tiny)


def test_bm_01_two_hundred_aborts_leave_nothing() -> None:
    tiny = small(num_gpu_blocks_override=60)
    made = []
    for count in range(200):
        request = tiny.add(ids(9, salt=count), greedy(40, n=2))
        made.append(ref(request))
        for _ in range(count % 5):
            tiny.engine.step()
        tiny.engine.abort(request.request_id)
    del request
    tiny.engine.step()
    assert_idle(tiny)
    assert tiny.engine._in_flight is None
    assert not tiny.engine._changed
    gc.collect()
    assert not [request for request in made if request() is not None], "somebody keeps them"


def test_bm_01_abort_of_an_unknown_request_is_ignored() -> None:
    tiny = small()
    tiny.engine.abort("nobody")
    request = tiny.add(ids(9), greedy(2))
    tiny.run()
    tiny.engine.abort(request.request_id)
    assert request.output().outputs[0].finish_reason == "length"


@pytest.mark.parametrize("length, copies", [(8, 0), (9, 3), (10, 3), (11, 3)])
def test_children_store_the_prompt_once_and_copy_its_tail_on_write(
    length: int, copies: int
) -> None:
    tiny = small()
    memory = tiny.engine.block_manager
    taken: list[int] = []
    take_copies = memory.take_copies

    def noted() -> tuple[np.ndarray, np.ndarray]:
        sources, targets = take_copies()
        taken.append(len(targets))
        return sources, targets

    memory.take_copies = noted  # type: ignore[method-assign]
    tiny.add(ids(length), greedy(12, n=4))
    tiny.engine.step()
    stats = tiny.engine.stats()
    assert (stats.running, stats.cow_copies) == (4, 0)
    assert stats.used_blocks == stats.shared_blocks == -(-length // 4)
    tiny.engine.step()
    stats = tiny.engine.stats()
    # The last of the four writes into the tail itself.
    assert stats.cow_copies == copies
    assert (stats.used_blocks, stats.shared_blocks) == (length // 4 + 4, length // 4)
    assert taken == [0, copies], "copies of a step are one operation"
    tiny.run()
    assert tiny.engine.stats().cow_copies == copies
    assert_idle(tiny)


def test_bm_02_admission_is_all_or_nothing() -> None:
    memory = BlockManager(8, 4, max_rows=4, max_blocks_per_row=8, caching=True)

    def other(length: int, salt: int) -> list[int]:
        return [100 * salt + place for place in range(length)]

    first = memory.allocate(ids(16))
    assert first is not None
    memory.cache_blocks(first.row, ids(16), 16)
    memory.free(first.row)
    assert memory.allocate(other(8, 1)) is not None
    before = memory.snapshot()
    assert memory.allocate(ids(16)[:8] + other(20, 2)) is None
    assert memory.snapshot() == before
    assert memory.allocate(ids(16)[:8] + other(16, 2)) is not None
    memory.check_invariants()


def test_bm_02_a_full_pool_with_hits_never_runs_an_empty_step() -> None:
    tiny = small(num_gpu_blocks_override=20)
    shared = ids(40)
    prompts = [shared + ids(6 + k, salt=k) for k in range(6)]
    outputs = tiny.generate(prompts, greedy(20))
    assert min(tiny.engine.stats().tokens_per_step) > 0
    for prompt, output in zip(prompts, outputs):
        assert_dense(prompt, tokens(output))
    assert_idle(tiny)
