"""Engines of the tiny model that compile little: one shape per program, made on first use."""

from __future__ import annotations

from typing import Any

from paxkv.outputs import RequestOutput
from tests.engine import dense_reference
from tests.engine.tiny import CONFIG, Tiny, params

CLOSE = 1e-3


def small(**options: Any) -> Tiny:
    """With one bucket, results are bit-identical whatever else runs."""
    return Tiny(**({"deterministic": True, "enforce_eager": True} | options))


def bucketed(**options: Any) -> Tiny:
    """With all its buckets, each compiled when it is first used."""
    return Tiny(**({"enforce_eager": True} | options))


def tokens(output: RequestOutput, child: int = 0) -> list[int]:
    return output.outputs[child].token_ids


def assert_dense(prompt: list[int], found: list[int]) -> None:
    """Greedy tokens as float64 has them, up to the first near tie (DESIGN.md 12)."""
    want, gaps = dense_reference.greedy(params(), CONFIG, prompt, len(found))
    until = next((at for at, gap in enumerate(gaps) if gap < CLOSE), len(found))
    assert found[:until] == want[:until]


def assert_idle(tiny: Tiny) -> None:
    """Nothing is left of any request."""
    stats = tiny.engine.stats()
    assert (stats.running, stats.waiting, stats.swapped, stats.used_blocks) == (0, 0, 0, 0)
    assert stats.free_blocks == stats.num_blocks
    assert stats.cpu_free_blocks == stats.num_cpu_blocks
    assert not tiny.engine.has_work
    assert not tiny.engine._requests
    assert len(tiny.engine.block_manager.live_rows) == 0
    tiny.engine.block_manager.check_invariants()
