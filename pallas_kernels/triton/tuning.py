"""Tuning: sizes that the kernels are compiled with."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from pallas_kernels import tuned
from pallas_kernels.dispatch import Call
from pallas_kernels.tiles import splits_for

_log = logging.getLogger(__name__)

# Programs that keep every multiprocessor of a large chip busy: an H100 has 132, two on each.
BUSY = 264


@dataclass(frozen=True)
class Tile:
    """One launch of the attention kernel.

    Attributes:
        rows: query rows of a program, tokens times the heads that share a key head; a power of two,
            at least 16, which is what a tensor core takes.
        keys: keys per iteration, a power of two, at least 16.
        splits: programs that share the keys of a tile, a power of two; above 1 a second kernel
            merges their results.
        num_warps, num_stages: of the program; stages are iterations whose loads are in flight.
    """

    rows: int
    keys: int
    splits: int = 1
    num_warps: int = 4
    num_stages: int = 3

    def __post_init__(self) -> None:
        for name, least in (("rows", 16), ("keys", 16), ("splits", 1), ("num_warps", 1)):
            value = getattr(self, name)
            if value < least or value & (value - 1):
                raise ValueError(f"{name}={value} must be a power of two of at least {least}")
        if self.num_stages < 1:
            raise ValueError(f"num_stages={self.num_stages} must be at least 1")


@dataclass(frozen=True)
class Config:
    """Tuning of the Triton back end.

    Attributes:
        decode: for sequences with one query token. `splits=1` is PagedAttention's v1, more is v2.
        prefill: for sequences with several.
    """

    decode: Tile
    prefill: Tile

    @classmethod
    def choose(cls, call: Call) -> Config:
        """What was tuned for these shapes on this device, else by heuristics."""
        found = tuned.lookup(call)
        if found is not None:
            try:
                return cls(**{part: Tile(**sizes) for part, sizes in found.items()})
            except (TypeError, ValueError) as error:
                _log.warning("an entry of %s is ignored: %s", tuned.cache_path(), error)
        return cls.by_heuristics(call)

    @classmethod
    def by_heuristics(cls, call: Call) -> Config:
        """Choose from static shapes alone, so that results never depend on a batch's content."""
        wide = np.dtype(call.dtype).itemsize == 4
        head_dim = padded(call.head_dim)
        # What is in flight must fit shared memory: keys and values of each stage.
        keys = max(16, min(128, 8192 // head_dim) // (2 if wide else 1))
        rows = max(16, padded(call.group))
        programs = min(call.num_tokens, call.num_seqs) * call.num_kv_heads
        # Without Hopper's wgmma the operands of a product are registers too: fewer keys, or spills.
        most = 64 if head_dim <= 64 or call.capability >= 90 or call.target != "cuda" else 32
        return cls(
            decode=Tile(rows, keys, splits_for(programs, call, BUSY), num_warps=4, num_stages=3),
            prefill=Tile(
                max(rows, 32 if wide else 64),
                min(keys, most),
                num_warps=8 if head_dim > 128 and most == 32 else 4,
                num_stages=2,
            ),
        )


def padded(size: int) -> int:
    """The power of two that is not below `size`; Triton has no other sizes."""
    return 1 << (size - 1).bit_length()
