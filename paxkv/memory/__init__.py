"""Paged KV memory on the host: block pool, block tables, copy-on-write, prefix cache.

Usable without a model and without JAX: numpy and the standard library only.
"""

from paxkv.memory.answers import Admission, Growth, OutOfBlocks
from paxkv.memory.contiguous import ContiguousManager
from paxkv.memory.invariants import InvariantError
from paxkv.memory.manager import BlockManager
from paxkv.memory.prefix import HashChain, sha256_block_hash
from paxkv.memory.stats import MemoryStats, Snapshot

__all__ = [
    "Admission",
    "BlockManager",
    "ContiguousManager",
    "Growth",
    "HashChain",
    "InvariantError",
    "MemoryStats",
    "OutOfBlocks",
    "Snapshot",
    "sha256_block_hash",
]
