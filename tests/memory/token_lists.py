"""Token lists and the shortest life of a sequence, for tests of the block manager."""

from __future__ import annotations

from paxkv.memory import BlockManager


def ids(count: int, salt: int = 0) -> list[int]:
    """`count` fixed token ids; another salt gives other ids from the first on."""
    return [(7 + 131 * salt + 17 * place) % 49152 for place in range(count)]


def run(bm: BlockManager, tokens: list[int], **options: object) -> int:
    """Admit, cache_blocks, free; returns the tokens that came from the cache."""
    allocation = bm.allocate(tokens, **options)  # type: ignore[arg-type]
    assert allocation is not None
    bm.cache_blocks(allocation.row, tokens, len(tokens))
    bm.free(allocation.row)
    bm.check_invariants()
    return allocation.num_cached_tokens


def start(bm: BlockManager, tokens: list[int], **options: object) -> int:
    allocation = bm.allocate(tokens, **options)  # type: ignore[arg-type]
    assert allocation is not None
    return allocation.row
