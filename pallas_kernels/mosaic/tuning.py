"""Tuning: sizes that the kernel is compiled with."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.dispatch import Call
from pallas_kernels.tiles import splits_for

# Rows of one wgmma, and so of a warpgroup.
ROWS = 64
# Programs that keep every multiprocessor of a large chip busy, one on each.
_BUSY = 132


@dataclass(frozen=True)
class Tile:
    """One launch of the kernel.

    Attributes:
        consumers: warpgroups that multiply, each 64 rows of queries; one more copies.
        keys: keys per iteration, a multiple of 64.
        stages: blocks of keys that are in flight.
        splits: programs that share the keys of a tile; above 1 their results are merged.
    """

    consumers: int = 1
    keys: int = 64
    stages: int = 2
    splits: int = 1

    def __post_init__(self) -> None:
        for name in ("consumers", "stages", "splits"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.consumers > 2:
            raise ValueError(f"consumers={self.consumers} must be 1 or 2")
        if self.keys not in (64, 128):
            raise ValueError(f"keys={self.keys} must be 64 or 128")

    @property
    def rows(self) -> int:
        """Rows of queries of a program."""
        return ROWS * self.consumers


@dataclass(frozen=True)
class Config:
    """Tuning of the Mosaic GPU back end.

    Attributes:
        decode: for sequences with one query token.
        prefill: for sequences with several.
    """

    decode: Tile
    prefill: Tile

    @classmethod
    def choose(cls, call: Call) -> Config:
        """Heuristic from static shapes alone, so that results never depend on a batch's content."""
        programs = min(call.num_tokens, call.num_seqs) * call.num_kv_heads
        # The interpreter has a thread for each warpgroup, and may hang with more than two.
        consumers = 1 if call.target == "cpu" else 2
        return cls(
            decode=Tile(
                consumers=1,
                keys=64,
                stages=4,
                splits=splits_for(programs, call, _BUSY),
            ),
            prefill=Tile(consumers, keys=64, stages=4),
        )


def copied_rows(tile: Tile, page_size: int) -> int | None:
    """Rows of a page that one copy brings; None if pages and blocks of keys do not fit."""
    if page_size % tile.keys == 0:
        return tile.keys
    return page_size if page_size % 8 == 0 and tile.keys % page_size == 0 else None


def shared_memory(tile: Tile, head_dim: int) -> int:
    """Bytes of shared memory that a program takes, all in 16-bit numbers but split results."""
    keys = 2 * tile.stages * tile.keys * head_dim * 2
    queries = tile.rows * head_dim * 2
    weights = tile.rows * tile.keys * 2
    partial = tile.rows * head_dim * 4 if tile.splits > 1 else 0
    lse = tile.rows * 4
    # Barriers, and scratch of the compiler's reductions.
    return keys + queries + weights + partial + lse + 4096
