"""The contract on the Mosaic GPU kernel: queries into tiles, results out of them.

TMA moves boxes, not ragged rows, so XLA packs the queries of a tile, tokens times the heads that
share a key head, into consecutive rows first, and picks the rows of each token out afterwards.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels.api import merge_states
from pallas_kernels.contract import AttentionInputs, AttentionOptions, call_of
from pallas_kernels.mosaic.kernel import Score, launch
from pallas_kernels.mosaic.tuning import Config, Tile
from pallas_kernels.tiles import Tiles, cut

Array = jax.Array


class Keys(NamedTuple):
    """Paged keys and values, and who reads which."""

    block_tables: Array
    k_pages: Array
    v_pages: Array


def attention(inputs: AttentionInputs, options: AttentionOptions) -> Array | tuple[Array, Array]:
    """See `pallas_kernels.ragged_paged_attention`."""
    assert inputs.k_scale is None, "refused by `check`"
    q = inputs.q
    config = options.config or Config.choose(call_of(inputs, options))
    keys = Keys(inputs.block_tables, inputs.k_pages, inputs.v_pages)
    score = Score(options.scale, options.window, options.softcap)
    out, lse = _attend_all(q, keys, inputs.kv_lens, inputs.query_start, score, config)
    if inputs.sinks is not None:
        out, lse = _with_sinks(out, lse, inputs.sinks)
    out = out.astype(q.dtype)
    return (out, lse) if options.return_lse else out


def _attend_all(
    q: Array, keys: Keys, kv_lens: Array, query_start: Array, score: Score, config: Config
) -> tuple[Array, Array]:
    num_tokens, num_heads, _ = q.shape
    query_lens = query_start[1:] - query_start[:-1]
    if num_tokens <= kv_lens.shape[0]:
        every = jnp.ones_like(query_lens, bool)
        tiles = cut(kv_lens, query_start, every, num_tokens, 1, rest=True)
        return _attend(q, keys, tiles, score, config.decode)
    # Sequences of one token are split like a decode step: their keys may be many.
    several = query_lens != 1
    per_tile = config.prefill.rows // (num_heads // keys.v_pages.shape[1])
    tiles = cut(kv_lens, query_start, several, num_tokens, per_tile, rest=True)
    out, lse = _attend(q, keys, tiles, score, config.prefill)
    singles = cut(kv_lens, query_start, ~several, num_tokens, 1)
    single_out, single_lse = _attend(q, keys, singles, score, config.decode)
    single = (query_lens == 1)[_seq_of(query_start, num_tokens)]
    single &= jnp.arange(num_tokens) < query_start[-1]
    return (
        jnp.where(single[:, None, None], single_out.astype(out.dtype), out),
        jnp.where(single[:, None], single_lse, lse),
    )


def _attend(q: Array, keys: Keys, tiles: Tiles, score: Score, tile: Tile) -> tuple[Array, Array]:
    """Output `[num_tokens, num_heads, head_dim]`, float32 if it was split, and log-sum-exp
    `[num_tokens, num_heads]` of the tokens in the tiles; others are undefined.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = keys.v_pages.shape[1]
    num_tiles, per_tile = tiles.table.shape[0], tiles.per_tile
    group = num_heads // num_kv_heads
    rows = per_tile * group
    tokens = tiles.tokens()
    packed = q[jnp.maximum(tokens, 0)].reshape(num_tiles, per_tile, num_kv_heads, -1, head_dim)
    packed = jnp.swapaxes(packed, 1, 2).reshape(num_tiles, num_kv_heads, rows, head_dim)
    whole = tile.rows if tile.consumers > 1 else -(-rows // 8) * 8
    packed = jnp.pad(packed, ((0, 0), (0, 0), (0, whole - rows), (0, 0)))

    dtype = jnp.float32 if tile.splits > 1 else q.dtype
    out, lse = launch(tiles.table, *keys, packed, score, tile, group, per_tile, dtype)
    out, lse = out[..., :rows, :], lse[..., :rows]
    out, lse = merge_states(out, lse) if tile.splits > 1 else (out[0], lse[0])

    place = jnp.zeros(num_tokens, jnp.int32)
    place = place.at[jnp.where(tokens < 0, num_tokens, tokens)].set(
        jnp.arange(tokens.shape[0], dtype=jnp.int32), mode="drop"
    )
    at, token = jnp.divmod(place, per_tile)
    shape = (num_tiles, num_kv_heads, per_tile, -1)
    out = out.reshape(*shape, head_dim)[at, :, token].reshape(num_tokens, num_heads, head_dim)
    return out, lse.reshape(shape)[at, :, token].reshape(num_tokens, num_heads)


def _seq_of(query_start: Array, num_tokens: int) -> Array:
    """The sequence of each token; the last one for padding."""
    token = jnp.arange(num_tokens)
    seq = jnp.searchsorted(query_start[1:], token, side="right")
    return jnp.minimum(seq, query_start.shape[0] - 2)


def _with_sinks(out: Array, lse: Array, sinks: Array) -> tuple[Array, Array]:
    """A key without a value takes its share of every softmax that saw something."""
    seen = ~jnp.isneginf(lse)
    with_sink = jnp.logaddexp(lse, sinks.astype(jnp.float32))
    share = jnp.where(seen, jnp.exp(lse - with_sink), 1.0)
    return out * share[..., None], jnp.where(seen, with_sink, lse)
