"""What each row has put into the prefix cache, and how far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paxkv.memory.lru import Int32Array
from paxkv.memory.prefix import Block, BlockHash, HashChain, PrefixIndex, TokenIds, hash_block


@dataclass(slots=True)
class Suspended:
    """What `Publications` knew of a row that was swapped out.

    blocks: those published or hit, from the first on.
    """

    enabled: bool
    root: Block
    blocks: tuple[Block, ...]
    chain: HashChain | None


class Publications:
    """Per row: which of its leading full blocks have been offered to the prefix cache.

    Attributes:
        index: the prefix cache itself.
        enabled: `[max_rows]` bool, whether the row may publish.
        done: `[max_rows]` int32, leading blocks that need no publishing any more.
        hits: `[max_rows]` int32, leading blocks that came from the cache.
    """

    def __init__(self, max_rows: int, block_size: int, block_hash: BlockHash) -> None:
        self.index = PrefixIndex()
        self.enabled = np.zeros(max_rows, np.bool_)
        self.done: Int32Array = np.zeros(max_rows, np.int32)
        self.hits: Int32Array = np.zeros(max_rows, np.int32)
        self._block_size = block_size
        self._block_hash = block_hash
        self._last = np.full(max_rows, None, object)
        self._chains = np.full(max_rows, None, object)

    def match(self, chain: HashChain, token_ids: TokenIds) -> Int32Array:
        """Pages that hold the longest cached run of leading blocks.

        The last token is left out: it is always computed, what is sampled comes from it.
        """
        pages: list[int] = []
        for column in range((len(token_ids) - 1) // self._block_size):
            page = self.index.find(chain.block(column, token_ids))
            if not page:
                break
            pages.append(page)
        return np.array(pages, np.int32)

    def start(self, row: int, chain: HashChain, num_hits: int, *, enabled: bool) -> None:
        """A new sequence in `row`, whose first `num_hits` blocks came from the cache."""
        self.enabled[row] = enabled
        self.done[row] = self.hits[row] = num_hits
        self._last[row] = chain.blocks[num_hits - 1] if num_hits else chain.root
        self._chains[row] = chain

    def copy(self, sources: Int32Array, targets: Int32Array) -> None:
        """Rows `targets` now have the content of rows `sources`."""
        self.enabled[targets] = self.enabled[sources]
        self.done[targets] = self.done[sources]
        self.hits[targets] = self.hits[sources]
        self._last[targets] = self._last[sources]
        # A chain belongs to one request's own tokens; children hash on from the last block.
        self._chains[targets[sources != targets]] = None

    def stop(self, rows: int | Int32Array) -> None:
        """The sequences in `rows` are over."""
        self.enabled[rows] = False
        self.done[rows] = self.hits[rows] = 0
        self._last[rows] = self._chains[rows] = None

    def suspend(self, row: int) -> Suspended:
        """What `resume` needs to go on later, maybe in another row."""
        blocks: list[Block] = []
        block: Block = self._last[row]
        while block.parent is not None:
            blocks.append(block)
            block = block.parent
        return Suspended(bool(self.enabled[row]), block, tuple(blocks[::-1]), self._chains[row])

    def resume(self, row: int, suspended: Suspended) -> None:
        """Go on in `row`. All its blocks are offered again: they may have been evicted."""
        self.enabled[row] = suspended.enabled
        self.done[row] = self.hits[row] = 0
        self._last[row] = suspended.root
        self._chains[row] = suspended.chain

    def find(self, suspended: Suspended) -> list[int]:
        """The page that has each of its blocks now, or 0."""
        if not suspended.enabled:
            return []
        return [self.index.find(block) for block in suspended.blocks]

    def publish(self, row: int, pages: Int32Array, token_ids: TokenIds) -> list[int]:
        """Enter the row's blocks after those done, held by `pages`; returns the pages entered."""
        done = int(self.done[row])
        chain: HashChain | None = self._chains[row]
        block: Block = self._last[row]
        blocks: list[Block] = []
        for column in range(done, done + len(pages)):
            if chain is not None:
                block = chain.block(column, token_ids)
            else:
                block = hash_block(block, token_ids, self._block_size, self._block_hash)
            blocks.append(block)
        self.done[row] = done + len(pages)
        self._last[row] = block
        return [page for page, new in zip(pages.tolist(), blocks) if self.index.add(new, page)]

    def rewind(self, row: int, num_blocks: int) -> None:
        """Blocks of `row` from `num_blocks` on count as never published."""
        self.done[row] = num_blocks
        while self._last[row].depth > num_blocks:
            self._last[row] = self._last[row].parent

    def shorten(self, row: int, num_blocks: int) -> None:
        """`row` has only its first `num_blocks` blocks any more."""
        self.hits[row] = min(int(self.hits[row]), num_blocks)
        if self.done[row] > num_blocks:
            self.rewind(row, num_blocks)

    def may_publish(self, rows: Int32Array, num_blocks: Int32Array) -> NDArray[np.bool_]:
        """Which of `rows` have some of their first `num_blocks` blocks left to publish."""
        return self.enabled[rows] & (num_blocks > self.done[rows])
