"""What may be hit, by whom, and what is evicted."""

from __future__ import annotations

import pytest
from token_lists import ids, run, start

from paxkv.memory import BlockManager, HashChain


class TestPrefixCache:
    def test_broken_hash_costs_speed_never_content(self) -> None:  # PC-01
        bm = BlockManager(32, 4, block_hash=lambda parent, payload: 7)
        for salt in range(3):
            assert run(bm, ids(16, salt)) == 0

    def test_colliding_blocks_hit_only_what_they_hold(self) -> None:  # PC-01
        """A hash that ignores the parent: equal tokens under another prefix must miss."""
        bm = BlockManager(32, 4, block_hash=lambda parent, payload: payload)
        run(bm, [1] * 4 + [2] * 4 + [3])
        assert run(bm, [9] * 4 + [2] * 4 + [3]) == 0
        assert run(bm, [1] * 4 + [2] * 4 + [3]) == 8

    def test_equal_content_in_other_objects_hits_under_a_broken_hash(self) -> None:
        bm = BlockManager(32, 4, block_hash=lambda parent, payload: payload)
        run(bm, ids(17))
        assert run(bm, ids(17), chain=bm.chain()) == 16

    def test_salt_adapter_and_weights_separate(self) -> None:  # PC-02
        bm = BlockManager(64, 4)
        prompt = ids(10)
        others = ({}, {"salt": "a"}, {"salt": "b"}, {"adapter": "a"}, {"adapter": 1}, {"salt": ""})
        for key in others:
            assert run(bm, prompt, **key) == 0
            assert run(bm, prompt, **key) == 8
        bm.reset_prefix_cache(weights_version=2)
        for key in others:
            assert run(bm, prompt, **key) == 0

    def test_a_chain_from_before_new_weights_does_not_carry_over(self) -> None:  # PC-02
        bm = BlockManager(64, 4)
        chain = bm.chain(salt="s")
        run(bm, ids(9), chain=chain)
        old = chain.blocks[0].digest
        bm.reset_prefix_cache(weights_version="v2")
        assert run(bm, ids(9), chain=chain) == 0
        assert chain.blocks[0].digest != old

    @pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 64])
    def test_at_least_one_token_is_computed(self, length: int) -> None:  # PC-03
        bm = BlockManager(64, 16)
        assert run(bm, ids(length)) == 0
        assert run(bm, ids(length)) == (length - 1) // 16 * 16
        assert run(bm, [*ids(length), 3]) == length // 16 * 16

    def test_a_block_is_no_hit_before_it_is_published(self) -> None:  # PC-04
        bm = BlockManager(64, 4)
        first = start(bm, ids(12))
        second = bm.allocate(ids(12))
        assert second is not None
        assert second.num_cached_tokens == 0
        bm.cache_blocks(first, ids(12), 12)
        third = bm.allocate(ids(12))
        assert third is not None
        assert third.num_cached_tokens == 8
        assert bm.row_pages(third.row)[:2].tolist() == bm.row_pages(first)[:2].tolist()
        assert not set(bm.row_pages(second.row)) & set(bm.row_pages(third.row))

    def test_only_full_blocks_are_cached(self) -> None:
        bm = BlockManager(64, 4)
        row = start(bm, ids(11))
        assert bm.cache_blocks(row, ids(11), 11) == 2
        assert bm.cache_blocks(row, ids(11), 11) == 0
        with pytest.raises(ValueError, match="num_tokens is 12; row 0 has 11 slots"):
            bm.cache_blocks(row, ids(12), 12)
        bm.append(row)
        assert bm.cache_blocks(row, ids(12), 12) == 1

    def test_a_request_may_neither_read_nor_leave_blocks(self) -> None:
        bm = BlockManager(64, 4)
        run(bm, ids(9), cache_blocks=False)
        assert run(bm, ids(9)) == 0
        assert run(bm, ids(9), use_cache=False) == 0
        assert run(bm, ids(9)) == 8
        off = BlockManager(64, 4, caching=False)
        run(off, ids(9))
        assert run(off, ids(9)) == 0
        assert off.stats().prefix_queries == 0

    def test_equal_content_is_cached_once(self) -> None:
        bm = BlockManager(64, 4)
        rows = [start(bm, ids(9)) for _ in range(2)]
        for row in rows:
            bm.cache_blocks(row, ids(9), 9)
        assert bm.stats().cached_blocks == 2
        bm.free_rows(rows)
        bm.check_invariants()
        assert bm.stats().evictable_blocks == 2

    def test_tails_are_evicted_first_and_old_before_new(self) -> None:
        bm = BlockManager(num_blocks=6, block_size=4)
        run(bm, ids(12))
        run(bm, ids(12, 1))
        depth = {page: k for k, (page, _) in enumerate(bm.snapshot().index)}
        order = [depth[page] for page in bm.snapshot().evictable]
        assert order == [2, 1, 0, 5, 4, 3]
        start(bm, ids(8, 2))
        assert bm.stats().evictions == 2
        left = [depth[page] for page in bm.snapshot().evictable]
        assert left == [0, 5, 4, 3]

    def test_blank_pages_go_before_cached_ones(self) -> None:
        bm = BlockManager(num_blocks=4, block_size=4)
        run(bm, ids(8))
        start(bm, ids(8, 1))
        assert bm.stats().evictions == 0

    def test_a_hit_makes_a_block_recent_again(self) -> None:
        bm = BlockManager(num_blocks=4, block_size=4)
        run(bm, ids(8))
        run(bm, ids(8, 1))
        oldest_first = bm.snapshot().evictable
        assert run(bm, ids(8)) == 4
        first_tail, first_head, second_tail, second_head = oldest_first
        # The tail was computed anew in the page that held it, or replaced: only the head moved.
        assert bm.snapshot().evictable[:2] == (second_tail, second_head)
        assert bm.snapshot().evictable[-1] == first_head
        assert first_tail in bm.snapshot().evictable

    def test_reset_forgets_everything_and_stops_live_rows(self) -> None:
        bm = BlockManager(16, 4)
        run(bm, ids(9))
        row = start(bm, ids(9, 1))
        bm.cache_blocks(row, ids(9, 1), 4)
        bm.reset_prefix_cache()
        bm.check_invariants()
        assert bm.stats().cached_blocks == 0
        assert bm.cache_blocks(row, ids(9, 1), 9) == 0
        bm.free(row)
        assert run(bm, ids(9)) == 0
        assert bm.num_free_blocks == 16

    def test_a_request_is_counted_once_and_resumes_apart(self) -> None:  # MT-01
        bm = BlockManager(20, 4)
        chain = bm.chain()
        blocker = start(bm, ids(72, 5), use_cache=False)
        for _ in range(5):
            assert bm.allocate(ids(40), chain=chain) is None
        bm.free(blocker)
        assert run(bm, ids(40), chain=chain) == 0
        assert run(bm, ids(44), chain=chain, resumed=True) == 40
        stats = bm.stats()
        assert (stats.prefix_queries, stats.prefix_hits) == (40, 0)
        assert (stats.resumed_queries, stats.resumed_hits) == (44, 40)
        assert run(bm, ids(40)) == 36
        assert bm.stats().prefix_hits == 36

    def test_hashes_are_made_once_per_block_and_request(self) -> None:
        made: list[bytes] = []

        def counting(parent: bytes, payload: bytes) -> bytes:
            made.append(payload)
            return parent + payload

        bm = BlockManager(16, 4, block_hash=counting)
        chain = bm.chain()
        for resumed in (False, True, True):
            run(bm, ids(41), chain=chain, resumed=resumed)
        assert len(made) == 11  # the root and ten blocks

    def test_a_miss_hashes_one_block(self) -> None:
        made: list[bytes] = []

        def counting(parent: bytes, payload: bytes) -> bytes:
            made.append(payload)
            return parent + payload

        bm = BlockManager(64, 4, block_hash=counting)
        start(bm, ids(160))
        assert len(made) == 2

    @pytest.mark.parametrize("value", [1.5, b"x", True, ["a"]])
    def test_bad_salt(self, value: object) -> None:
        with pytest.raises(ValueError, match="salt is"):
            HashChain(4, salt=value)  # type: ignore[arg-type]


class TestWithdrawing:
    def test_what_was_never_computed_is_no_hit(self) -> None:
        bm = BlockManager(32, 4)
        run(bm, ids(5))
        row = start(bm, ids(17))
        bm.cache_blocks(row, ids(17), 17)
        sharing = bm.allocate(ids(13))
        assert sharing is not None
        assert sharing.num_cached_tokens == 12
        assert bm.withdraw(row, 9).tolist() == [sharing.row]
        bm.check_invariants()
        bm.free_rows([row, sharing.row])
        assert run(bm, ids(17)) == 8

    def test_those_who_hit_it_are_told_even_after_a_reset(self) -> None:
        bm = BlockManager(32, 4)
        row = start(bm, ids(17))
        bm.cache_blocks(row, ids(17), 17)
        sharing = bm.allocate(ids(13))
        assert sharing is not None
        bm.reset_prefix_cache()
        assert bm.withdraw(row, 0).tolist() == [sharing.row]
        bm.check_invariants()

    def test_blocks_that_came_from_the_cache_stay(self) -> None:
        bm = BlockManager(32, 4)
        run(bm, ids(9))
        row = start(bm, ids(17))
        bm.cache_blocks(row, ids(17), 17)
        assert len(bm.withdraw(row, 0)) == 0
        bm.free(row)
        assert run(bm, ids(17)) == 8

    def test_it_can_be_published_again(self) -> None:
        bm = BlockManager(32, 4)
        row = start(bm, ids(17))
        assert bm.cache_blocks(row, ids(17), 17) == 4
        bm.withdraw(row, 5)
        assert bm.cache_blocks(row, ids(17), 17) == 3
        bm.check_invariants()
