"""Sequences in host memory: what moves, what is shared, what is refused."""

from __future__ import annotations

import pytest
from token_lists import ids, run, start

from paxkv.memory import BlockManager, InvariantError, Swapped


def manager(num_blocks: int = 16, num_host_blocks: int = 16) -> BlockManager:
    return BlockManager(num_blocks, 4, max_rows=8, num_host_blocks=num_host_blocks)


def put_away(bm: BlockManager, row: int) -> Swapped:
    swapped = bm.swap.swap_out(row)
    assert swapped is not None
    bm.check_invariants()
    return swapped


def bring_back(bm: BlockManager, swapped: Swapped, num_tokens: int = 1) -> int:
    allocation = bm.swap.swap_in(swapped, num_tokens)
    assert allocation is not None
    bm.check_invariants()
    return allocation.row


def land(bm: BlockManager) -> int:
    """Do what a step does; returns the pages moved to host memory."""
    moves = bm.swap.take_transfers()
    bm.take_copies()
    bm.swap.landed(moves.out_hosts)
    bm.check_invariants()
    return len(moves.out_hosts)


class TestSwapping:
    def test_there_and_back(self) -> None:
        bm = manager()
        row = start(bm, ids(10))
        pages = bm.row_pages(row).tolist()
        swapped = put_away(bm, row)
        assert (swapped.num_tokens, len(swapped.pages)) == (10, 3)
        assert bm.num_free_blocks == 16
        assert bm.swap.num_free_blocks == 13
        moves = bm.swap.take_transfers()
        assert moves.out_devices.tolist() == pages
        assert moves.out_hosts.tolist() == swapped.pages.tolist()
        assert not len(moves.in_devices)
        bm.swap.landed(moves.out_hosts)
        back = bring_back(bm, swapped, 3)
        assert bm.num_tokens[back] == 13
        moves = bm.swap.take_transfers()
        assert moves.in_hosts.tolist() == swapped.pages.tolist()
        assert moves.in_devices.tolist() == bm.row_pages(back)[:3].tolist()
        assert bm.swap.num_free_blocks == 16
        stats = bm.swap.stats()
        assert (stats.pages_out, stats.pages_in, stats.sequences) == (3, 3, 0)

    def test_a_page_counts_when_it_has_landed(self) -> None:
        bm = manager()
        swapped = put_away(bm, start(bm, ids(10)))
        moves = bm.swap.take_transfers()
        assert bm.swap.stats().pages_out == 0
        before = bm.snapshot()
        assert bm.swap.swap_in(swapped, 1) is None
        assert bm.snapshot() == before
        bm.swap.landed(moves.out_hosts)
        assert bm.swap.stats().pages_out == 3
        bring_back(bm, swapped)

    def test_children_move_their_pages_once_and_share_them_again(self) -> None:
        bm = manager()
        row = start(bm, ids(10))
        family = [row, *bm.fork(row, 3).tolist()]  # type: ignore[union-attr]
        away = [put_away(bm, member) for member in family]
        assert land(bm) == 3
        assert bm.swap.stats().used_blocks == 3
        rows = [bring_back(bm, swapped) for swapped in away]
        moves = bm.swap.take_transfers()
        # Two full pages shared by all four; each writes to a tail of its own.
        assert len(moves.in_devices) == 2 + 4
        assert len({tuple(bm.row_pages(row)[:2].tolist()) for row in rows}) == 1
        assert bm.references[bm.row_pages(rows[0])[:2]].tolist() == [4, 4]
        bm.free_rows(rows)
        assert bm.num_free_blocks == bm.swap.num_free_blocks == 16

    def test_what_others_hold_on_the_device_is_taken_from_there(self) -> None:
        bm = manager()
        row = start(bm, ids(10))
        (child,) = bm.fork(row, 1).tolist()  # type: ignore[union-attr]
        bm.append(row)
        swapped = put_away(bm, child)
        land(bm)
        back = bring_back(bm, swapped)
        assert len(bm.swap.take_transfers().in_devices) == 1
        assert bm.row_pages(back)[:2].tolist() == bm.row_pages(row)[:2].tolist()

    def test_what_is_still_cached_on_the_device_is_taken_from_there(self) -> None:
        bm = manager()
        row = start(bm, ids(10))
        bm.cache_blocks(row, ids(10), 10)
        pages = bm.row_pages(row)[:2].tolist()
        swapped = put_away(bm, row)
        land(bm)
        assert bm.stats().evictable_blocks == 2
        back = bring_back(bm, swapped)
        assert bm.row_pages(back)[:2].tolist() == pages
        assert len(bm.swap.take_transfers().in_devices) == 1
        assert bm.stats().prefix_queries == 10, "a return is no query"

    def test_what_somebody_else_has_cached_meanwhile_is_taken_too(self) -> None:
        bm = manager(num_blocks=4)
        row = start(bm, ids(10))
        bm.cache_blocks(row, ids(10), 10)
        swapped = put_away(bm, row)
        land(bm)
        run(bm, ids(16, 1))
        assert bm.stats().evictions == 2
        run(bm, ids(9))
        back = bring_back(bm, swapped)
        assert len(bm.swap.take_transfers().in_devices) == 1
        assert bm.cache_blocks(back, ids(11), 11) == 0

    def test_evicted_blocks_come_from_host_memory_and_are_cached_again(self) -> None:
        bm = manager(num_blocks=4)
        row = start(bm, ids(10))
        bm.cache_blocks(row, ids(10), 10)
        swapped = put_away(bm, row)
        land(bm)
        run(bm, ids(16, 1), cache_blocks=False)
        back = bring_back(bm, swapped)
        assert len(bm.swap.take_transfers().in_devices) == 3
        assert bm.cache_blocks(back, ids(11), 11) == 2

    def test_a_written_tail_moves_again(self) -> None:
        bm = manager()
        row = start(bm, ids(10))
        (child,) = bm.fork(row, 1).tolist()  # type: ignore[union-attr]
        away = put_away(bm, child)
        assert land(bm) == 3
        bm.append(row)
        bm.take_copies()
        put_away(bm, row)
        assert land(bm) == 1
        bring_back(bm, away)


class TestLimits:
    def test_several_rows_leave_together_or_not_at_all(self) -> None:
        bm = manager(num_host_blocks=5)
        row = start(bm, ids(10))
        rows = [row, *bm.fork(row, 2).tolist()]  # type: ignore[union-attr]
        bm.append_batch(rows)
        bm.take_copies()
        assert bm.swap.swap_out_rows(rows[:2]) is not None
        before = bm.snapshot()
        other = start(bm, ids(10, 1))
        assert bm.swap.swap_out_rows([rows[2], other]) is None
        bm.free(other)
        assert bm.snapshot().host == before.host
        away = bm.swap.swap_out_rows(rows[2:])
        assert away is not None
        assert land(bm) == 5
        assert manager(num_host_blocks=0).swap.swap_out_rows([]) is None

    def test_host_pages_run_out(self) -> None:
        bm = manager(num_host_blocks=4)
        rows = [start(bm, ids(10, salt)) for salt in range(2)]
        put_away(bm, rows[0])
        before = bm.snapshot()
        assert bm.swap.swap_out(rows[1]) is None
        assert bm.snapshot() == before

    def test_without_host_pages_nothing_is_swapped(self) -> None:
        bm = manager(num_host_blocks=0)
        assert bm.swap.swap_out(start(bm, ids(10))) is None

    def test_a_return_needs_room_and_a_row(self) -> None:
        bm = manager(num_blocks=4)
        swapped = put_away(bm, start(bm, ids(10)))
        land(bm)
        other = start(bm, ids(6, 1))
        before = bm.snapshot()
        assert bm.swap.swap_in(swapped, 1) is None
        assert bm.snapshot() == before
        bm.free(other)
        assert bm.swap.swap_in(swapped, 1, headroom=2) is None
        bring_back(bm, swapped)

    def test_a_host_page_given_up_early_is_given_out_late(self) -> None:
        bm = manager(num_host_blocks=3)
        bm.swap.discard(put_away(bm, start(bm, ids(10))))
        assert bm.swap.num_free_blocks == 0
        row = start(bm, ids(10, 1))
        assert bm.swap.swap_out(row) is None
        land(bm)
        assert bm.swap.num_free_blocks == 3
        put_away(bm, row)

    def test_pages_still_to_be_filled_are_not_swapped(self) -> None:
        bm = manager()
        swapped = put_away(bm, start(bm, ids(10)))
        land(bm)
        row = bring_back(bm, swapped)
        with pytest.raises(ValueError, match="still to be filled"):
            bm.swap.swap_out(row)
        (child,) = bm.fork(row, 1).tolist()  # type: ignore[union-attr]
        bm.swap.take_transfers()
        bm.append(child)
        with pytest.raises(ValueError, match="still to be filled"):
            bm.swap.swap_out(child)

    def test_wrong_calls_are_refused(self) -> None:
        bm = BlockManager(16, 4, max_blocks_per_row=3, num_host_blocks=8)
        swapped = put_away(bm, start(bm, ids(10)))
        land(bm)
        for count in (0, -1, 3):
            with pytest.raises(ValueError, match="can grow by 1 to 2"):
                bm.swap.swap_in(swapped, count)
        bring_back(bm, swapped, 2)
        for call in (bm.swap.discard, lambda s: bm.swap.swap_in(s, 1)):
            with pytest.raises(ValueError, match="not a sequence in host memory"):
                call(swapped)
        with pytest.raises(ValueError, match="num_host_blocks is -1"):
            BlockManager(16, 4, num_host_blocks=-1)


class TestEnds:
    def test_an_arrival_nobody_waits_for_is_cancelled(self) -> None:
        bm = manager()
        swapped = put_away(bm, start(bm, ids(10)))
        land(bm)
        bm.free(bring_back(bm, swapped))
        assert not bm.swap.take_transfers()
        assert bm.num_free_blocks == bm.swap.num_free_blocks == 16

    def test_a_reset_stops_hits_and_publishing(self) -> None:
        bm = manager()
        row = start(bm, ids(10))
        bm.cache_blocks(row, ids(10), 10)
        swapped = put_away(bm, row)
        land(bm)
        bm.reset_prefix_cache(weights_version=2)
        run(bm, ids(10))
        back = bring_back(bm, swapped)
        assert len(bm.swap.take_transfers().in_devices) == 3, "its own KV, not that of new weights"
        assert bm.cache_blocks(back, ids(11), 11) == 0

    def test_a_failed_step_empties_it(self) -> None:
        bm = manager()
        away = [put_away(bm, start(bm, ids(10, salt))) for salt in range(2)]
        bm.swap.drop_all()
        bm.check_invariants()
        assert bm.swap.num_free_blocks == 16
        assert not bm.swap.take_transfers()
        with pytest.raises(ValueError, match="not a sequence"):
            bm.swap.swap_in(away[0], 1)

    def test_what_preempting_costs(self) -> None:
        bm = manager()
        row = start(bm, ids(10))
        assert bm.swap.cost([row]) == (6, 10)
        bm.cache_blocks(row, ids(10), 10)
        other = start(bm, ids(10))
        # Two cached pages stay with the other; they move out once and come back by themselves.
        assert bm.swap.cost([row]) == (4, 2)
        # Together they share nothing with anybody: two full pages, and a tail each.
        assert bm.swap.cost([row, other]) == (8, 12)
        put_away(bm, other)
        assert bm.swap.cost([row]) == (4, 10)

    def test_a_contradiction_is_named(self) -> None:
        bm = manager()
        swapped = put_away(bm, start(bm, ids(6)))
        swapped.pages[0] = swapped.pages[1]
        with pytest.raises(InvariantError, match=r"host pages \[1, 2\]"):
            bm.check_invariants()
