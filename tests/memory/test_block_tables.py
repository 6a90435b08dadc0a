"""Sharing, copying, permuting and freeing rows."""

from __future__ import annotations

import numpy as np
import pytest
from token_lists import ids, run, start

from paxkv.memory import BlockManager, OutOfBlocks


class TestCopyOnWrite:
    def test_children_share_until_they_write(self) -> None:
        bm = BlockManager(16, 4)
        parent = start(bm, ids(6))
        children = bm.fork(parent, 2)
        assert children is not None
        rows = [parent, *children.tolist()]
        assert bm.stats().used_blocks == 2
        assert bm.stats().shared_blocks == 2
        tail = int(bm.row_pages(parent)[1])
        assert bm.blocks_needed(rows) == 2
        assert bm.append_batch(rows) == 2
        sources, targets = bm.take_copies()
        assert sources.tolist() == [tail, tail]
        tails = [int(bm.row_pages(row)[1]) for row in rows]
        assert sorted(targets.tolist()) == sorted(set(tails) - {tail})
        assert len({int(bm.row_pages(row)[0]) for row in rows}) == 1
        assert bm.stats().cow_copies == 2
        assert bm.append_batch(rows) == 0
        bm.check_invariants()

    def test_a_full_tail_is_not_copied(self) -> None:
        bm = BlockManager(16, 4)
        parent = start(bm, ids(8))
        (child,) = bm.fork(parent, 1)  # type: ignore[misc]
        assert bm.append_batch([parent, int(child)]) == 2
        assert len(bm.take_copies()[0]) == 0

    def test_single_append_reports_pages_and_the_copy(self) -> None:
        bm = BlockManager(16, 4)
        parent = start(bm, ids(6))
        bm.fork(parent, 1)
        tail = int(bm.row_pages(parent)[1])
        growth = bm.append(parent, 7)
        pages = bm.row_pages(parent).tolist()
        assert growth.copy == (tail, pages[1])
        assert growth.pages == tuple(pages[2:])
        assert bm.num_tokens[parent] == 13

    def test_can_append_counts_the_copies(self) -> None:
        bm = BlockManager(3, 4)
        parent = start(bm, ids(6))
        rows = [parent, *bm.fork(parent, 2).tolist()]  # type: ignore[union-attr]
        assert bm.blocks_needed(rows) == 2
        assert not bm.can_append(rows)
        assert bm.can_append(parent)
        assert bm.can_append(rows[:2]) is False
        before = bm.snapshot()
        with pytest.raises(OutOfBlocks, match="2 blocks are needed and 1 of 3 are free"):
            bm.append_batch(rows)
        assert bm.snapshot() == before

    def test_a_copy_into_a_page_given_back_is_dropped(self) -> None:
        bm = BlockManager(4, 4)
        parent = start(bm, ids(6))
        (child,) = bm.fork(parent, 1)  # type: ignore[misc]
        bm.append(int(child))
        bm.free(int(child))
        assert len(bm.take_copies()[0]) == 0
        assert bm.stats().cow_copies == 0

    def test_the_last_owner_leaving_undoes_the_copy(self) -> None:
        """Else the source page could be handed out, and be the target of another copy."""
        bm = BlockManager(4, 4)
        parent = start(bm, ids(6))
        (child,) = bm.fork(parent, 1)  # type: ignore[misc]
        pages = bm.row_pages(parent).tolist()
        bm.append(int(child))
        bm.free(parent)
        bm.check_invariants()
        assert len(bm.take_copies()[0]) == 0
        assert bm.row_pages(int(child)).tolist() == pages
        assert bm.num_free_blocks == 2

    def test_a_copy_of_a_pending_copy_reads_the_original(self) -> None:
        bm = BlockManager(8, 4)
        first = start(bm, ids(6))
        tail = int(bm.row_pages(first)[1])
        (second,) = bm.fork(first, 1)  # type: ignore[misc]
        bm.append(int(second), 1)
        (third,) = bm.fork(int(second), 1)  # type: ignore[misc]
        bm.append(int(third), 1)
        sources, _ = bm.take_copies()
        assert sources.tolist() == [tail, tail]


class TestRows:
    def test_freeing_all_children_gives_everything_back(self) -> None:  # BM-01
        bm = BlockManager(32, 4, max_rows=4)
        for _ in range(200):
            parent = start(bm, ids(9), cache_blocks=False)
            rows = [parent, *bm.fork(parent, 3).tolist()]  # type: ignore[union-attr]
            bm.append_batch(rows, 5)
            bm.free_rows(rows)
            assert bm.num_free_blocks == 32
            assert len(bm.live_rows) == 0
        bm.check_invariants()

    def test_fork_without_rows_changes_nothing(self) -> None:
        bm = BlockManager(8, 4, max_rows=3)
        row = start(bm, ids(5))
        before = bm.snapshot()
        assert bm.fork(row, 3) is None
        assert bm.snapshot() == before

    def test_rows_can_be_permuted_and_dropped_at_once(self) -> None:
        bm = BlockManager(32, 4)
        rows = [start(bm, ids(6 + k, k)) for k in range(3)]
        held = [bm.row_pages(row).tolist() for row in rows]
        bm.fork_rows([rows[1], rows[0], rows[0]], rows)
        assert [bm.row_pages(row).tolist() for row in rows] == [held[1], held[0], held[0]]
        assert bm.num_tokens[rows].tolist() == [7, 6, 6]
        bm.check_invariants()
        assert bm.stats().used_blocks == 4

    def test_an_identity_permutation_keeps_the_chain(self) -> None:
        bm = BlockManager(32, 4)
        row = start(bm, ids(12))
        bm.fork_rows([row], [row])
        assert bm.cache_blocks(row, ids(12), 12) == 3
        bm.check_invariants()

    def test_children_publish_their_own_continuations(self) -> None:
        bm = BlockManager(32, 4)
        parent = start(bm, ids(6))
        bm.cache_blocks(parent, ids(6), 6)
        (child,) = bm.fork(parent, 1)  # type: ignore[misc]
        bm.append_batch([parent, child], 2)
        one, two = [*ids(6), 1, 1], [*ids(6), 2, 2]
        bm.cache_blocks(parent, one, 8)
        bm.cache_blocks(int(child), two, 8)
        bm.free_rows([parent, child])
        assert run(bm, [*one, 5]) == 8
        assert run(bm, [*two, 5]) == 8
        assert run(bm, [*ids(6), 3, 3, 5]) == 4

    def test_patches_keep_a_second_table_equal(self) -> None:
        bm = BlockManager(32, 4, max_rows=8)
        mirror = np.zeros_like(bm.tables)

        def follow() -> int:
            rows, columns, pages = bm.take_patches()
            assert len({*zip(rows.tolist(), columns.tolist())}) == len(rows)
            mirror[rows, columns] = pages
            assert np.array_equal(mirror, bm.tables)
            return len(rows)

        parent = start(bm, ids(6))
        assert follow() == 2
        rows = [parent, *bm.fork(parent, 2).tolist()]  # type: ignore[union-attr]
        bm.append_batch(rows)
        bm.append_batch(rows, 4)
        bm.fork_rows([rows[1]] * 3, rows)
        follow()
        assert follow() == 0

    def test_slots(self) -> None:
        bm = BlockManager(32, 4)
        row = start(bm, ids(6))
        pages = bm.row_pages(row)
        assert bm.slots([row] * 3, [0, 4, 5]).tolist() == [
            pages[0] * 4,
            pages[1] * 4,
            pages[1] * 4 + 1,
        ]
        for position in (-1, 6):
            with pytest.raises(ValueError, match="positions"):
                bm.slots([row], [position])

    def test_flat_pages(self) -> None:
        bm = BlockManager(32, 4)
        rows = [start(bm, ids(length, length)) for length in (9, 1, 4)]
        pages, columns = bm.flat_pages(rows)
        assert pages.tolist() == [page for row in rows for page in bm.row_pages(row).tolist()]
        assert columns.tolist() == [0, 1, 2, 0, 0]

    def test_bad_rows_change_nothing(self) -> None:
        bm = BlockManager(32, 4, max_rows=4)
        row = start(bm, ids(4))
        before = bm.snapshot()
        for bad in (-1, 1, 4):
            for call in (bm.free, bm.append, bm.row_pages):
                with pytest.raises(ValueError, match=f"row.*{bad}"):
                    call(bad)
            with pytest.raises(ValueError, match="rows must be"):
                bm.free_rows([row, bad])
            with pytest.raises(ValueError, match="rows must be"):
                bm.fork_rows([bad], [row])
        for twice in (bm.free_rows, bm.append_batch):
            with pytest.raises(ValueError, match="distinct"):
                twice([row, row])
        with pytest.raises(ValueError, match="distinct"):
            bm.fork_rows([row, row], [2, 2])
        with pytest.raises(ValueError, match="2 sources for 1 targets"):
            bm.fork_rows([row, row], [2])
        for target in (-1, 4):
            with pytest.raises(ValueError, match="targets"):
                bm.fork_rows([row], [target])
        with pytest.raises(ValueError, match="count is 0"):
            bm.fork(row, 0)
        with pytest.raises(ValueError, match="num_tokens is 0"):
            bm.append(row, 0)
        assert bm.snapshot() == before
