"""Token lists and the shortest life of a sequence, for tests of the block manager."""

from __future__ import annotations

from paxkv.memory import BlockManager


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
