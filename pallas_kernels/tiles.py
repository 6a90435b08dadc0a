"""How the query tokens of a step are cut into tiles."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.contract import AttentionOptions
from pallas_kernels.dispatch import Call

Array = jax.Array

_MOST_SPLITS = 32
# A split of fewer keys costs more in merging than it saves.
_LEAST_SPLIT = 256


class Tiles(NamedTuple):
    """Consecutive tokens of one sequence each.

    Attributes:
        table: int32 `[num_tiles, 4]`: the sequence (a row of the block tables), the first token,
            how many tokens, the position of the first. Unused tiles have no token.
        first_key: int32 `[1]`, the position from which on keys are looked at.
        per_tile: most tokens of a tile; static.
        causal: whether a token sees positions up to its own, or all those up to `first position` of
            the tile; static.
    """

    table: Array
    first_key: Array
    per_tile: int
    causal: bool = True

    def tokens(self) -> Array:
        """The token of each place in the tiles, int32 `[num_tiles * per_tile]`, -1 for none."""
        place = jnp.arange(self.per_tile)
        first, count = self.table[:, 1, None], self.table[:, 2, None]
        return jnp.where(place < count, first + place, -1).reshape(-1)


def prepare(
    block_tables: Array,
    kv_lens: Array,
    query_start: Array,
    num_tokens: int,
    page_size: int,
    options: AttentionOptions,
) -> tuple[()]:
    """Prepare nothing: tiles are cut in each layer, and XLA keeps one of the equal cuts."""
    del block_tables, kv_lens, query_start, num_tokens, page_size, options
    return ()


def cut(
    kv_lens: Array,
    query_start: Array,
    takes: Array,
    num_tokens: int,
    per_tile: int,
    *,
    rest: bool = False,
    first_key: Array | int = 0,
) -> Tiles:
    """Cut the tokens of the sequences in `takes`, bool `[num_seqs]`, into tiles of `per_tile`.

    With `rest`, the tokens behind the last sequence are in tiles too: they see no key, and somebody
    must write their zeros.
    """
    starts, ends, cached = query_start[:-1], query_start[1:], kv_lens
    if rest:
        padding = query_start[-1:]
        starts = jnp.concatenate((starts, padding))
        ends = jnp.concatenate((ends, jnp.full_like(padding, num_tokens)))
        cached = jnp.concatenate((cached, jnp.zeros_like(kv_lens[:1])))
        takes = jnp.concatenate((takes, jnp.ones_like(takes[:1])))
    num_seqs = starts.shape[0]
    lengths = jnp.where(takes, ends - starts, 0)
    tiles_of = (lengths + per_tile - 1) // per_tile
    behind = jnp.cumsum(tiles_of)
    most = min(num_tokens // per_tile + num_seqs, num_tokens)
    if per_tile == 1 and not rest:
        most = min(most, num_seqs)
    tile = jnp.arange(most, dtype=jnp.int32)
    seq = jnp.minimum(jnp.sum(tile[:, None] >= behind, axis=1), num_seqs - 1)
    skipped = (tile - (behind - tiles_of)[seq]) * per_tile
    used = tile < behind[-1]
    index = (
        jnp.minimum(seq, kv_lens.shape[0] - 1),
        jnp.where(used, starts[seq] + skipped, 0),
        jnp.where(used, jnp.minimum(lengths[seq] - skipped, per_tile), 0),
        jnp.where(used, (cached - lengths)[seq] + skipped, -1),
    )
    return Tiles(
        jnp.stack(index, axis=1).astype(jnp.int32),
        jnp.full(1, first_key, jnp.int32),
        per_tile,
    )


def splits_for(programs: int, call: Call, busy: int) -> int:
    """Splits that make `busy` programs of so many, at the longest context the tables allow; a
    power of two.
    """
    most = max(1, call.max_pages * call.page_size // _LEAST_SPLIT)
    splits = min(-(-busy // programs), most, _MOST_SPLITS)
    return 1 << (splits.bit_length() - 1)
