"""Paged KV memory on the host: block pool, block tables, copy-on-write, prefix cache.

Usable without a model and without JAX: numpy and the standard library only.
"""

from paxkv.memory.contiguous import ContiguousManager
from paxkv.memory.invariants import InvariantError
from paxkv.memory.manager import BlockManager
from paxkv.memory.prefix import HashChain, sha256_block_hash
from paxkv.memory.results import Allocation, Growth, MemoryStats, OutOfBlocks, Snapshot
from paxkv.memory.swap import Swapped, SwapSpace, SwapStats
from paxkv.memory.transfers import NO_TRANSFERS, Transfers

__all__ = [
    "NO_TRANSFERS",
    "Allocation",
    "BlockManager",
    "ContiguousManager",
    "Growth",
    "HashChain",
    "InvariantError",
    "MemoryStats",
    "OutOfBlocks",
    "Snapshot",
    "SwapSpace",
    "SwapStats",
    "Swapped",
    "Transfers",
    "sha256_block_hash",
]
