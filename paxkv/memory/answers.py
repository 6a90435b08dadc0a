"""What the block manager answers."""

from __future__ import annotations

from dataclasses import dataclass


class OutOfBlocks(RuntimeError):
    """More pages were asked for than are free; nothing has changed."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence got a row.

    Attributes:
        row: where its block table is.
        num_cached_tokens: leading tokens whose KV is there already, fewer than the tokens given:
            a multiple of the block size from the cache, any number from host memory.
        num_new_tokens: tokens after those that have slots now and must be computed.
    """

    row: int
    num_cached_tokens: int
    num_new_tokens: int


@dataclass(frozen=True, slots=True)
class Growth:
    """What `append` did.

    Attributes:
        pages: pages added at the end of the row.
        copy: `(source, target)` if the row's shared tail page was replaced by a copy.
    """

    pages: tuple[int, ...]
    copy: tuple[int, int] | None
