"""The bug bank's memory cases, and the contract of every call, on small pools."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from paxkv.memory import BlockManager, HashChain, InvariantError, OutOfBlocks


def ids(count: int, salt: int = 0) -> list[int]:
    """`count` fixed token ids; another salt gives other ids from the first on."""
    return [(7 + 131 * salt + 17 * place) % 49152 for place in range(count)]


def run(bm: BlockManager, tokens: list[int], **options: object) -> int:
    """Admit, publish, free; returns the tokens that came from the cache."""
    admission = bm.admit(tokens, **options)  # type: ignore[arg-type]
    assert admission is not None
    bm.publish(admission.row, tokens, len(tokens))
    bm.free(admission.row)
    bm.check_invariants()
    return admission.num_cached_tokens


def start(bm: BlockManager, tokens: list[int], **options: object) -> int:
    admission = bm.admit(tokens, **options)  # type: ignore[arg-type]
    assert admission is not None
    return admission.row


def test_importing_it_imports_neither_jax_nor_anything_heavy() -> None:
    heavy = "{'jax', 'transformers', 'tokenizers', 'torch'}"
    code = f"import sys, paxkv.memory; bad = {heavy} & set(sys.modules); assert not bad, bad"
    subprocess.run([sys.executable, "-c", code], check=True)


class TestAdmission:
    def test_all_or_nothing_and_pinned_blocks_are_no_room(self) -> None:  # BM-02
        bm = BlockManager(num_blocks=8, block_size=4, caching=True)
        run(bm, ids(16))
        bm.admit(ids(8, 1))
        before = bm.snapshot()
        assert bm.admit(ids(8) + ids(20, 2)) is None
        assert bm.snapshot() == before
        admission = bm.admit(ids(8) + ids(16, 2))
        assert admission is not None
        assert admission.num_cached_tokens == 8
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
        assert bm.admit(ids(4, 1)) is None
        assert bm.snapshot() == before
        bm.free(row)
        assert bm.admit(ids(4, 1)) is not None

    def test_larger_than_the_empty_pool_is_an_error_not_a_wait(self) -> None:  # PS-01
        bm = BlockManager(num_blocks=8, block_size=16)
        assert bm.max_tokens_per_row == 128
        assert bm.fits(128)
        assert not bm.fits(129)
        for chunk in (None, 16):
            with pytest.raises(ValueError, match="129 tokens; it must have 1 to 128"):
                bm.admit(ids(129), first_chunk=chunk)
        assert bm.admit(ids(128)) is not None
        with pytest.raises(ValueError, match="0 tokens"):
            bm.admit([])

    def test_a_lone_row_that_outgrows_the_pool_is_told_so(self) -> None:  # PS-01
        bm = BlockManager(num_blocks=8, block_size=16, max_blocks_per_row=32)
        row = start(bm, ids(100))
        bm.append(row, 28)
        before = bm.snapshot()
        with pytest.raises(ValueError, match="to 129 tokens; a row holds at most 128"):
            bm.append(row)
        assert bm.snapshot() == before

    def test_first_chunk_then_growth(self) -> None:
        bm = BlockManager(8, 4)
        prompt = ids(19)
        first = bm.admit(prompt, first_chunk=6)
        assert first is not None
        assert (first.num_cached_tokens, first.num_new_tokens) == (0, 6)
        assert len(bm.row_pages(first.row)) == 2
        assert bm.publish(first.row, prompt, 6) == 1
        grown = bm.append(first.row, 7)
        assert len(grown.pages) == 2
        assert grown.copy is None
        assert bm.publish(first.row, prompt, 13) == 2
        second = bm.admit(prompt, first_chunk=6)
        assert second is not None
        assert (second.num_cached_tokens, second.num_new_tokens) == (12, 6)

    def test_page_zero_is_never_given_out(self) -> None:
        bm = BlockManager(5, 2)
        row = start(bm, ids(10))
        assert sorted(bm.row_pages(row).tolist()) == [1, 2, 3, 4, 5]

    @pytest.mark.parametrize("chunk", [0, -3])
    def test_bad_chunk(self, chunk: int) -> None:
        with pytest.raises(ValueError, match=f"first_chunk is {chunk}"):
            BlockManager(8, 4).admit(ids(4), first_chunk=chunk)

    @pytest.mark.parametrize("token", [2**31, 1.5, "a"])
    def test_bad_token_changes_nothing(self, token: object) -> None:
        bm = BlockManager(8, 4)
        before = bm.snapshot()
        with pytest.raises(ValueError, match="integers of 32 bits"):
            bm.admit([1, 2, token, 4, 5])  # type: ignore[list-item]
        assert bm.snapshot() == before

    @pytest.mark.parametrize("name", ["num_blocks", "block_size", "max_rows", "max_blocks_per_row"])
    @pytest.mark.parametrize("value", [0, -1, 2.5])
    def test_bad_size(self, name: str, value: object) -> None:
        sizes = {"num_blocks": 8, "block_size": 4} | {name: value}
        with pytest.raises(ValueError, match=f"{name} is {value}"):
            BlockManager(**sizes)  # type: ignore[arg-type]


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
        second = bm.admit(ids(12))
        assert second is not None
        assert second.num_cached_tokens == 0
        bm.publish(first, ids(12), 12)
        third = bm.admit(ids(12))
        assert third is not None
        assert third.num_cached_tokens == 8
        assert bm.row_pages(third.row)[:2].tolist() == bm.row_pages(first)[:2].tolist()
        assert not set(bm.row_pages(second.row)) & set(bm.row_pages(third.row))

    def test_only_full_blocks_are_published(self) -> None:
        bm = BlockManager(64, 4)
        row = start(bm, ids(11))
        assert bm.publish(row, ids(11), 11) == 2
        assert bm.publish(row, ids(11), 11) == 0
        with pytest.raises(ValueError, match="num_tokens is 12; row 0 has 11 slots"):
            bm.publish(row, ids(12), 12)
        bm.append(row)
        assert bm.publishable([row], [11]).tolist() == [False]
        assert bm.publishable([row], [12]).tolist() == [True]
        assert bm.publish(row, ids(12), 12) == 1

    def test_a_request_may_neither_read_nor_leave_blocks(self) -> None:
        bm = BlockManager(64, 4)
        run(bm, ids(9), publish=False)
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
            bm.publish(row, ids(9), 9)
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
        bm.publish(row, ids(9, 1), 4)
        bm.reset_prefix_cache()
        bm.check_invariants()
        assert bm.stats().cached_blocks == 0
        assert bm.publish(row, ids(9, 1), 9) == 0
        bm.free(row)
        assert run(bm, ids(9)) == 0
        assert bm.num_free_blocks == 16

    def test_a_request_is_counted_once_and_resumes_apart(self) -> None:  # MT-01
        bm = BlockManager(20, 4)
        chain = bm.chain()
        blocker = start(bm, ids(72, 5), use_cache=False)
        for _ in range(5):
            assert bm.admit(ids(40), chain=chain) is None
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
            parent = start(bm, ids(9), publish=False)
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
        assert bm.publish(row, ids(12), 12) == 3
        bm.check_invariants()

    def test_children_publish_their_own_continuations(self) -> None:
        bm = BlockManager(32, 4)
        parent = start(bm, ids(6))
        bm.publish(parent, ids(6), 6)
        (child,) = bm.fork(parent, 1)  # type: ignore[misc]
        bm.append_batch([parent, child], 2)
        one, two = [*ids(6), 1, 1], [*ids(6), 2, 2]
        bm.publish(parent, one, 8)
        bm.publish(int(child), two, 8)
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
            with pytest.raises(ValueError, match="rows must be live"):
                bm.free_rows([row, bad])
            with pytest.raises(ValueError, match="rows must be live"):
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


class TestWithdrawing:
    def test_what_was_never_computed_is_no_hit(self) -> None:
        bm = BlockManager(32, 4)
        run(bm, ids(5))
        row = start(bm, ids(17))
        bm.publish(row, ids(17), 17)
        sharing = bm.admit(ids(13))
        assert sharing is not None
        assert sharing.num_cached_tokens == 12
        assert bm.withdraw(row, 9).tolist() == [sharing.row]
        bm.check_invariants()
        bm.free_rows([row, sharing.row])
        assert run(bm, ids(17)) == 8

    def test_blocks_that_came_from_the_cache_stay(self) -> None:
        bm = BlockManager(32, 4)
        run(bm, ids(9))
        row = start(bm, ids(17))
        bm.publish(row, ids(17), 17)
        assert len(bm.withdraw(row, 0)) == 0
        bm.free(row)
        assert run(bm, ids(17)) == 8

    def test_it_can_be_published_again(self) -> None:
        bm = BlockManager(32, 4)
        row = start(bm, ids(17))
        assert bm.publish(row, ids(17), 17) == 4
        bm.withdraw(row, 5)
        assert bm.publish(row, ids(17), 17) == 3
        bm.check_invariants()


class TestProof:
    def test_stats_add_up(self) -> None:
        bm = BlockManager(16, 4)
        run(bm, ids(9))
        row = start(bm, ids(6, 1))
        bm.fork(row, 1)
        stats = bm.stats()
        assert stats.total_blocks == stats.free_blocks + stats.used_blocks == 16
        assert (stats.cached_blocks, stats.evictable_blocks) == (2, 2)
        assert (stats.shared_blocks, stats.live_rows) == (2, 2)

    def test_a_snapshot_sees_the_order_of_eviction(self) -> None:
        def state(first: int, second: int) -> object:
            bm = BlockManager(16, 4)
            rows = [start(bm, ids(4, salt)) for salt in range(2)]
            for salt, row in enumerate(rows):
                bm.publish(row, ids(4, salt), 4)
            bm.free(rows[first])
            bm.free(rows[second])
            return bm.snapshot()

        assert state(0, 1) == state(0, 1)
        assert state(0, 1) != state(1, 0)

    def test_a_contradiction_is_named(self) -> None:
        bm = BlockManager(16, 4)
        row = start(bm, ids(6))
        bm.references[bm.row_pages(row)[0]] += 1
        with pytest.raises(InvariantError, match=r"pages \[1\] have \[2\] references"):
            bm.check_invariants()

    def test_it_prints_itself(self) -> None:
        bm = BlockManager(16, 4)
        row = start(bm, ids(6))
        bm.fork(row, 1)
        assert repr(bm) == "BlockManager(16 blocks of 4, 14 free, 0 cached, 2 rows live)"
        last = str(bm).splitlines()[-1]
        assert last.split() == ["1", "1", "2", "2/4", "2"]
