"""Prefix cache: full blocks of tokens to pages, keyed by a chain of block hashes."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paxkv.memory.pool import Int32Array

TokenIds = Sequence[int] | np.ndarray
BlockHash = Callable[[Any, bytes], Hashable]
"""`(parent digest, payload bytes) -> digest`; the root's parent digest is `b""`."""

Identity = str | int | None


def sha256_block_hash(parent: bytes, payload: bytes) -> bytes:
    """SHA-256 over the parent's digest followed by the block's token ids (int32, in order)."""
    return hashlib.sha256(parent + payload).digest()


class Block:
    """One full block of tokens after one certain prefix: its digest, and its content.

    `parent` is the block before it; the root (`depth` 0) carries what else the KV depends on.
    """

    __slots__ = ("depth", "digest", "parent", "payload")

    def __init__(self, digest: Hashable, payload: bytes, parent: Block | None) -> None:
        self.digest = digest
        self.payload = payload
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1

    def same_content(self, other: Block) -> bool:
        """Compare tokens and all ancestors, whatever the digests say."""
        mine: Block | None = self
        theirs: Block | None = other
        while mine is not theirs:
            if mine is None or theirs is None or mine.payload != theirs.payload:
                return False
            mine, theirs = mine.parent, theirs.parent
        return True


def payload_of(token_ids: TokenIds, start: int, stop: int) -> bytes:
    """Token ids `start:stop` as int32 bytes.

    Raises:
        ValueError: an id is no integer in -2**31 .. 2**31 - 1.
    """
    part = token_ids[start:stop]
    if isinstance(part, np.ndarray) and part.dtype == np.int32:
        return part.tobytes()
    try:
        return array("i", part).tobytes()
    except (OverflowError, TypeError) as error:
        raise ValueError(
            f"token_ids[{start}:{stop}] must hold integers of 32 bits ({error})"
        ) from None


def hash_block(parent: Block, token_ids: TokenIds, block_size: int, block_hash: BlockHash) -> Block:
    """The block of `token_ids` that follows `parent`."""
    start = parent.depth * block_size
    payload = payload_of(token_ids, start, start + block_size)
    return Block(block_hash(parent.digest, payload), payload, parent)


class HashChain:
    """The block hashes of one request, each computed once and kept through preemption.

    A request owns one and passes it to `BlockManager.allocate` each time; its token ids may only
    grow at the end in between.
    """

    __slots__ = ("_hash", "_size", "adapter", "blocks", "root", "salt", "weights_version")

    def __init__(
        self,
        block_size: int,
        *,
        salt: Identity = None,
        adapter: Identity = None,
        weights_version: Identity = None,
        block_hash: BlockHash = sha256_block_hash,
    ) -> None:
        for name, value in (("salt", salt), ("adapter", adapter)):
            if value is not None and type(value) not in (str, int):
                raise ValueError(f"{name} is {value!r}; it must be a str, an int or None")
        self._size = block_size
        self._hash = block_hash
        self.salt = salt
        self.adapter = adapter
        self.rebase(weights_version)

    def rebase(self, weights_version: Identity) -> None:
        """Start over for other weights: old digests match no new ones."""
        self.weights_version = weights_version
        payload = repr((self.salt, self.adapter, weights_version)).encode()
        self.root = Block(self._hash(b"", payload), payload, None)
        self.blocks: list[Block] = []

    def block(self, index: int, token_ids: TokenIds) -> Block:
        """Block `index` of `token_ids`, hashed now if it is the next one after those known."""
        if index == len(self.blocks):
            parent = self.blocks[-1] if index else self.root
            self.blocks.append(hash_block(parent, token_ids, self._size, self._hash))
        return self.blocks[index]


class PrefixIndex:
    """Digest to page and page to block. One page per digest, the first one cached.

    A digest alone never makes a hit: `find` compares the content too, so a broken hash costs
    speed and nothing else.
    """

    def __init__(self) -> None:
        self._pages: dict[Hashable, int] = {}
        self._blocks: dict[int, Block] = {}

    def __len__(self) -> int:
        return len(self._pages)

    def find(self, block: Block) -> int:
        """The page that holds `block`'s content, or 0."""
        page = self._pages.get(block.digest, 0)
        if page:
            known = self._blocks[page]
            if known is block:
                return page
            if not known.same_content(block):
                return 0
            # Equal content: sharing the ancestors makes the next comparison short.
            block.parent = known.parent
        return page

    def add(self, block: Block, page: int) -> bool:
        """Enter `page`, unless the digest is taken: then False, and nothing changes."""
        if block.digest in self._pages:
            return False
        self._pages[block.digest] = page
        self._blocks[page] = block
        return True

    def remove(self, pages: Int32Array) -> None:
        for page in pages.tolist():
            del self._pages[self._blocks.pop(page).digest]

    def clear(self) -> Int32Array:
        """Forget everything; returns the pages that were known."""
        pages = np.fromiter(self._blocks, np.int32, len(self._blocks))
        self._pages.clear()
        self._blocks.clear()
        return pages

    def entries(self) -> dict[int, Block]:
        """Page to block, a copy."""
        return dict(self._blocks)

    def page_of(self, digest: Hashable) -> int:
        """The page entered under `digest`, or 0; no content is compared."""
        return self._pages.get(digest, 0)


@dataclass(slots=True)
class Suspended:
    """State of `RowHashes` for a row that was swapped out.

    blocks: the leading blocks, cached or hit.
    """

    enabled: bool
    root: Block
    blocks: tuple[Block, ...]
    chain: HashChain | None


class RowHashes:
    """Per row: which of its leading full blocks have been entered into the prefix cache.

    Attributes:
        index: the prefix cache itself.
        enabled: `[max_rows]` bool, whether the row may cache blocks.
        done: `[max_rows]` int32, leading blocks that need no caching any more.
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

        The last token is left out: it is always computed, since sampling needs its hidden state.
        """
        pages: list[int] = []
        for column in range((len(token_ids) - 1) // self._block_size):
            page = self.index.find(chain.block(column, token_ids))
            if not page:
                break
            pages.append(page)
        return np.array(pages, np.int32)

    def start(self, row: int, chain: HashChain, num_hits: int, *, enabled: bool) -> None:
        """Start a sequence in `row` whose first `num_hits` blocks came from the cache."""
        self.enabled[row] = enabled
        self.done[row] = self.hits[row] = num_hits
        self._last[row] = chain.blocks[num_hits - 1] if num_hits else chain.root
        self._chains[row] = chain

    def copy(self, sources: Int32Array, targets: Int32Array) -> None:
        """Copy rows `sources` to rows `targets`."""
        self.enabled[targets] = self.enabled[sources]
        self.done[targets] = self.done[sources]
        self.hits[targets] = self.hits[sources]
        self._last[targets] = self._last[sources]
        # A chain belongs to one request's own tokens; children hash on from the last block.
        self._chains[targets[sources != targets]] = None

    def stop(self, rows: int | Int32Array) -> None:
        """Forget the sequences in `rows`."""
        self.enabled[rows] = False
        self.done[rows] = self.hits[rows] = 0
        self._last[rows] = self._chains[rows] = None

    def suspend(self, row: int) -> Suspended:
        """Return what `resume` needs later, maybe in another row."""
        blocks: list[Block] = []
        block: Block = self._last[row]
        while block.parent is not None:
            blocks.append(block)
            block = block.parent
        return Suspended(bool(self.enabled[row]), block, tuple(blocks[::-1]), self._chains[row])

    def resume(self, row: int, suspended: Suspended) -> None:
        """Continue in `row`. All its blocks are entered again: they may have been evicted."""
        self.enabled[row] = suspended.enabled
        self.done[row] = self.hits[row] = 0
        self._last[row] = suspended.root
        self._chains[row] = suspended.chain

    def find(self, suspended: Suspended) -> list[int]:
        """The page that holds each block now, or 0."""
        if not suspended.enabled:
            return []
        return [self.index.find(block) for block in suspended.blocks]

    def cache_blocks(self, row: int, pages: Int32Array, token_ids: TokenIds) -> list[int]:
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
        """Mark blocks of `row` from `num_blocks` on as not cached."""
        self.done[row] = num_blocks
        while self._last[row].depth > num_blocks:
            self._last[row] = self._last[row].parent

    def shorten(self, row: int, num_blocks: int) -> None:
        """Keep only the first `num_blocks` blocks of `row`."""
        self.hits[row] = min(int(self.hits[row]), num_blocks)
        if self.done[row] > num_blocks:
            self.rewind(row, num_blocks)
