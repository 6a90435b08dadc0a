"""Figures, snapshots, invariants, printing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from token_lists import ids, run, start

from paxkv.memory import BlockManager, InvariantError


def test_importing_it_imports_neither_jax_nor_anything_heavy() -> None:
    heavy = "{'jax', 'transformers', 'tokenizers', 'torch'}"
    code = f"import sys, paxkv.memory; bad = {heavy} & set(sys.modules); assert not bad, bad"
    subprocess.run([sys.executable, "-c", code], check=True)


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
                bm.cache_blocks(row, ids(4, salt), 4)
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
