"""Paged KV memory on the host: block pool, block tables, copy-on-write, prefix cache.

Usable without a model and without JAX: numpy and the standard library only.
"""

from paxkv.memory.answers import Admission, Growth, OutOfBlocks
from paxkv.memory.contiguous import ContiguousManager
from paxkv.memory.invariants import InvariantError
from paxkv.memory.manager import BlockManager
from paxkv.memory.moves import NO_MOVES, Moves
from paxkv.memory.prefix import HashChain, sha256_block_hash
from paxkv.memory.stats import MemoryStats, Snapshot
from paxkv.memory.swap import Swapped, SwapSpace, SwapStats

__all__ = [
    "NO_MOVES",
    "Admission",
    "BlockManager",
    "ContiguousManager",
    "Growth",
    "HashChain",
    "InvariantError",
    "MemoryStats",
    "Moves",
    "OutOfBlocks",
    "Snapshot",
    "SwapSpace",
    "SwapStats",
    "Swapped",
    "sha256_block_hash",
]
