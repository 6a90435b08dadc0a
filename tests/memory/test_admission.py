"""Who gets pages, and who is told to wait or to go."""

from __future__ import annotations

import pytest
from token_lists import ids, run, start

from paxkv.memory import BlockManager, OutOfBlocks


class TestAdmission:
    def test_all_or_nothing_and_pinned_blocks_are_no_room(self) -> None:  # BM-02
        bm = BlockManager(num_blocks=8, block_size=4, caching=True)
        run(bm, ids(16))
        bm.allocate(ids(8, 1))
        before = bm.snapshot()
        assert bm.allocate(ids(8) + ids(20, 2)) is None
        assert bm.snapshot() == before
        allocation = bm.allocate(ids(8) + ids(16, 2))
        assert allocation is not None
        assert allocation.num_cached_tokens == 8
        bm.check_invariants()
        assert bm.num_free_blocks == 0

    def test_a_matched_block_is_never_evicted_for_its_own_request(self) -> None:  # BM-02
        bm = BlockManager(num_blocks=4, block_size=4)
        run(bm, ids(16))
        matched = [page for page, _ in bm.snapshot().index][:3]
        row = start(bm, ids(12) + ids(4, 1))
        assert bm.row_pages(row)[:3].tolist() == matched
        assert bm.stats().evictions == 1

    def test_refused_for_want_of_a_row(self) -> None:
        bm = BlockManager(8, 4, max_rows=1)
        row = start(bm, ids(4))
        before = bm.snapshot()
        assert bm.allocate(ids(4, 1)) is None
        assert bm.snapshot() == before
        bm.free(row)
        assert bm.allocate(ids(4, 1)) is not None

    def test_larger_than_the_empty_pool_is_an_error_not_a_wait(self) -> None:  # PS-01
        bm = BlockManager(num_blocks=8, block_size=16)
        assert bm.max_tokens_per_row == 128
        assert bm.fits(128)
        assert not bm.fits(129)
        for chunk in (None, 16):
            with pytest.raises(ValueError, match="129 tokens; it must have 1 to 128"):
                bm.allocate(ids(129), first_chunk=chunk)
        assert bm.allocate(ids(128)) is not None
        with pytest.raises(ValueError, match="0 tokens"):
            bm.allocate([])

    def test_a_lone_row_that_outgrows_the_pool_is_told_so(self) -> None:  # PS-01
        bm = BlockManager(num_blocks=8, block_size=16, max_blocks_per_row=32)
        row = start(bm, ids(100))
        bm.append(row, 28)
        before = bm.snapshot()
        assert bm.fits(128)
        assert not bm.can_append(row)
        assert bm.blocks_needed([row]) == 1
        with pytest.raises(OutOfBlocks, match="1 blocks are needed and 0 of 8 are free"):
            bm.append(row)
        assert bm.snapshot() == before

    def test_a_row_does_not_outgrow_its_table(self) -> None:
        bm = BlockManager(num_blocks=8, block_size=16, max_blocks_per_row=2)
        row = start(bm, ids(30))
        bm.append(row, 2)
        before = bm.snapshot()
        with pytest.raises(ValueError, match="to 33 tokens; a block table has room for 32"):
            bm.append(row)
        assert bm.snapshot() == before

    def test_headroom_stays_free(self) -> None:
        bm = BlockManager(num_blocks=8, block_size=4)
        assert bm.allocate(ids(16), headroom=5) is None
        assert bm.allocate(ids(16), headroom=4) is not None
        with pytest.raises(ValueError, match="headroom is -1"):
            bm.allocate(ids(4), headroom=-1)

    def test_room_counts_the_rest_of_the_tail(self) -> None:
        bm = BlockManager(num_blocks=8, block_size=4)
        row = start(bm, ids(6))
        assert bm.room(row) == 26
        bm.append(row, 26)
        assert bm.room(row) == 0

    def test_room_counts_the_copy_of_a_shared_tail(self) -> None:
        bm = BlockManager(num_blocks=3, block_size=4)
        row = start(bm, ids(6))
        bm.fork(row, 1)
        assert bm.room(row) == 2
        assert bm.can_append(row, 2)
        assert not bm.can_append(row, 3)
        bm.allocate(ids(3, 1))
        assert bm.room(row) == 0
        assert not bm.can_append(row)

    def test_first_chunk_then_growth(self) -> None:
        bm = BlockManager(8, 4)
        prompt = ids(19)
        first = bm.allocate(prompt, first_chunk=6)
        assert first is not None
        assert (first.num_cached_tokens, first.num_new_tokens) == (0, 6)
        assert len(bm.row_pages(first.row)) == 2
        assert bm.cache_blocks(first.row, prompt, 6) == 1
        grown = bm.append(first.row, 7)
        assert len(grown.pages) == 2
        assert grown.copy is None
        assert bm.cache_blocks(first.row, prompt, 13) == 2
        second = bm.allocate(prompt, first_chunk=6)
        assert second is not None
        assert (second.num_cached_tokens, second.num_new_tokens) == (12, 6)

    def test_page_zero_is_never_given_out(self) -> None:
        bm = BlockManager(5, 2)
        row = start(bm, ids(10))
        assert sorted(bm.row_pages(row).tolist()) == [1, 2, 3, 4, 5]

    @pytest.mark.parametrize("chunk", [0, -3])
    def test_bad_chunk(self, chunk: int) -> None:
        with pytest.raises(ValueError, match=f"first_chunk is {chunk}"):
            BlockManager(8, 4).allocate(ids(4), first_chunk=chunk)

    @pytest.mark.parametrize("token", [2**31, 1.5, "a"])
    def test_bad_token_changes_nothing(self, token: object) -> None:
        bm = BlockManager(8, 4)
        before = bm.snapshot()
        with pytest.raises(ValueError, match="integers of 32 bits"):
            bm.allocate([1, 2, token, 4, 5])  # type: ignore[list-item]
        assert bm.snapshot() == before

    @pytest.mark.parametrize("name", ["num_blocks", "block_size", "max_rows", "max_blocks_per_row"])
    @pytest.mark.parametrize("value", [0, -1, 2.5])
    def test_bad_size(self, name: str, value: object) -> None:
        sizes = {"num_blocks": 8, "block_size": 4} | {name: value}
        with pytest.raises(ValueError, match=f"{name} is {value}"):
            BlockManager(**sizes)  # type: ignore[arg-type]
