"""Attention over pages as one Triton kernel: decoding, prefill and everything between.

A *tile* is a few consecutive tokens of one sequence times the query heads that share a key head:
the heads of a group read the same keys, so they are rows of one matrix product. A program takes a
tile, a key head and a share of the keys (a *split*), walks the pages that its tokens can see and
keeps a running softmax (Dao et al. 2022, FlashAttention, algorithm 1). With several splits it
leaves partial results and their log-sum-exps, which `merge.py` joins (PagedAttention v2).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.contract import AttentionInputs, AttentionOptions, call_of
from pallas_kernels.dispatch import current_target
from pallas_kernels.tiles import Tiles, cut
from pallas_kernels.triton.merge import merge_splits
from pallas_kernels.triton.tuning import Config, Tile, padded

Array = jax.Array

# A finite stand-in for -inf: the difference of two masked scores stays a number.
MASKED = -1e30
_LOG2E = math.log2(math.e)


class Keys(NamedTuple):
    """Paged keys and values, and who reads which: the operands that are the same for every tile."""

    block_tables: Array
    k_pages: Array
    v_pages: Array
    k_scale: Array | None
    v_scale: Array | None

    @classmethod
    def of(cls, inputs: AttentionInputs) -> Keys:
        return cls(*(getattr(inputs, name) for name in cls._fields))


class Score(NamedTuple):
    """How a score is made of a query and a key; static."""

    scale: float
    window: int | None
    softcap: float | None

    @classmethod
    def of(cls, options: AttentionOptions) -> Score:
        return cls(options.scale, options.window, options.softcap)


def attention(inputs: AttentionInputs, options: AttentionOptions) -> Array | tuple[Array, Array]:
    """See `pallas_kernels.ragged_paged_attention`."""
    config = options.config or Config.choose(call_of(inputs, options))
    keys, score = Keys.of(inputs), Score.of(options)
    out, lse = attend_from(
        inputs.q, keys, inputs.kv_lens, inputs.query_start, score, config, inputs.sinks
    )
    return (out, lse) if options.return_lse else out


def attend_from(
    q: Array,
    keys: Keys,
    kv_lens: Array,
    query_start: Array,
    score: Score,
    config: Config,
    sinks: Array | None = None,
    *,
    first_key: Array | int = 0,
    dtype: Any = None,
) -> tuple[Array, Array]:
    """Attention over the keys from position `first_key` on; output in `dtype`, by default q's."""
    num_tokens, num_heads, _ = q.shape
    query_lens = query_start[1:] - query_start[:-1]
    dtype = dtype or q.dtype
    if num_tokens <= kv_lens.shape[0]:
        every = jnp.ones_like(query_lens, bool)
        tiles = cut(kv_lens, query_start, every, num_tokens, 1, rest=True, first_key=first_key)
        return attend(q, keys, tiles, score, config.decode, dtype, sinks)
    # Sequences of one token are split like a decode step: their keys may be many.
    several = query_lens != 1
    per_tile = config.prefill.rows // (num_heads // keys.v_pages.shape[1])
    tiles = cut(kv_lens, query_start, several, num_tokens, per_tile, rest=True, first_key=first_key)
    prompts = attend(q, keys, tiles, score, config.prefill, dtype, sinks)
    tiles = cut(kv_lens, query_start, ~several, num_tokens, 1, first_key=first_key)
    return attend(q, keys, tiles, score, config.decode, dtype, sinks, prompts)


def attend(
    q: Array,
    keys: Keys,
    tiles: Tiles,
    score: Score,
    tile: Tile,
    dtype: Any,
    sinks: Array | None = None,
    into: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """Output `[num_tokens, num_heads, head_dim]` in `dtype` and float32 log-sum-exp `[num_tokens,
    num_heads]` of the tokens that stand in a tile.

    All others keep what `into` holds; without it they are undefined.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = keys.v_pages.shape[1]
    split = tile.splits > 1
    num_rows = tiles.table.shape[0] * tiles.per_tile if split else num_tokens
    shape = (tile.splits, num_rows, num_heads, head_dim)
    kernel = partial(
        _kernel,
        score=score,
        tile=tile,
        group=num_heads // num_kv_heads,
        per_tile=tiles.per_tile,
        causal=tiles.causal,
    )
    start = None
    if into is not None and not split:
        start = (into[0][None], into[1][None])
    out, lse = pl.pallas_call(
        kernel,
        out_shape=(
            jax.ShapeDtypeStruct(shape, jnp.float32 if split else dtype),
            jax.ShapeDtypeStruct(shape[:-1], jnp.float32),
        ),
        grid=(num_kv_heads, tiles.table.shape[0], tile.splits),
        input_output_aliases={} if start is None else {0: 0, 1: 1},
        compiler_params=plgpu.CompilerParams(num_warps=tile.num_warps, num_stages=tile.num_stages),
        interpret=current_target() == "cpu",
        name="paged_attention",
    )(start, tiles.table, tiles.first_key, q, keys, sinks)
    if split:
        return merge_splits(out, lse, tiles.tokens(), num_tokens, dtype, into)
    return out[0], lse[0]


def _kernel(
    start: Any,
    index: Any,
    first_key: Any,
    q: Any,
    keys: Keys,
    sinks: Any,
    out: Any,
    lse: Any,
    *,
    score: Score,
    tile: Tile,
    group: int,
    per_tile: int,
    causal: bool,
) -> None:
    """One tile `[rows]`, one key head, one split of the keys."""
    del start  # Aliased to the outputs.
    head, tile_index, split = (pl.program_id(axis) for axis in range(3))
    seq, first_token, count, first_position = (index[tile_index, field] for field in range(4))
    page_size, head_dim = keys.v_pages.shape[2:]
    by_row = (slice(None), None)

    # Rows are tokens times heads; an odd group leaves the last rows of the tile without a token.
    row = jnp.arange(tile.rows)
    token = row // group
    mine = token < count
    # Not clamped: two rows at one address would be one store too many for the interpreter.
    token_at, head_at = first_token + token, head * group + row % group
    lane = jnp.arange(padded(head_dim))
    in_head = lane < head_dim
    # [rows, head_dim]
    queries = plgpu.load(
        q.at[token_at[by_row], head_at[by_row], lane[None]],
        mask=mine[by_row] & in_head[None],
        other=0.0,
    )

    # The keys seen by any token of the tile, and the last one that each row sees.
    begin, end = first_key[0], first_position + (count if causal else 1)
    last = first_position + (token if causal else jnp.zeros_like(token))
    if score.window is not None:
        begin = jnp.maximum(begin, first_position - score.window + 1)
    # Whole pages, so that a block of keys is as contiguous as the pages allow.
    base = begin // page_size * page_size
    blocks = jnp.maximum(0, pl.cdiv(end - base, tile.keys))
    share = pl.cdiv(blocks, tile.splits)

    row_max = jnp.full(tile.rows, MASKED / 2, jnp.float32)
    total = jnp.zeros(tile.rows, jnp.float32)
    if sinks is not None:
        # A key without a value, seen by the first split only.
        sink = plgpu.load(sinks.at[head_at], mask=mine, other=0.0).astype(jnp.float32) * _LOG2E
        row_max = jnp.where(split == 0, sink, row_max)
        total = jnp.where(split == 0, 1.0, total)
    acc = jnp.zeros((tile.rows, padded(head_dim)), jnp.float32)

    def step(block: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        row_max, total, acc = carry
        position = base + block * tile.keys + jnp.arange(tile.keys)
        readable = (position >= begin) & (position < end)
        page = plgpu.load(keys.block_tables.at[seq, position // page_size], mask=readable, other=0)
        offset = position % page_size
        where = (page[by_row], head, offset[by_row], lane[None])
        in_page = readable[by_row] & in_head[None]
        # [keys, head_dim]
        k = plgpu.load(keys.k_pages.at[where], mask=in_page, other=0.0)
        v = plgpu.load(keys.v_pages.at[where], mask=in_page, other=0.0)

        # [rows, keys], in units of log 2
        s = _dot(queries, k.astype(queries.dtype).T) * score.scale
        if keys.k_scale is not None:
            s *= _factors(keys.k_scale, page, offset, head, readable)
        if score.softcap is not None:
            s = score.softcap * jnp.tanh(s / score.softcap)
        seen = readable[None] & (position[None] <= last[by_row])
        if score.window is not None:
            seen &= position[None] > last[by_row] - score.window
        s = jnp.where(seen, s * _LOG2E, MASKED)

        new_top = jnp.maximum(row_max, jnp.max(s, axis=1))
        weight = jnp.exp2(s - new_top[by_row])
        keep = jnp.exp2(row_max - new_top)
        total = total * keep + jnp.sum(weight, axis=1)
        if keys.v_scale is not None:
            weight *= _factors(keys.v_scale, page, offset, head, readable)
        kind = _value_dtype(queries.dtype, keys)
        acc = acc * keep[by_row] + _dot(weight.astype(kind), v.astype(kind))
        return new_top, total, acc

    stop = jnp.minimum((split + 1) * share, blocks)
    row_max, total, acc = lax.fori_loop(split * share, stop, step, (row_max, total, acc))

    any_seen = (total > 0) & (last >= begin)
    total = jnp.where(any_seen, total, 1.0)
    place = tile_index * per_tile + token if tile.splits > 1 else token_at
    plgpu.store(
        out.at[split, place[by_row], head_at[by_row], lane[None]],
        (acc / total[by_row]).astype(out.dtype),
        mask=mine[by_row] & in_head[None],
    )
    found = jnp.where(any_seen, (row_max + jnp.log2(total)) / _LOG2E, -jnp.inf)
    plgpu.store(lse.at[split, place, head_at], found, mask=mine)


def _factors(scale: Any, page: Array, offset: Array, head: Array, mask: Array) -> Array:
    """`[1, keys]`"""
    return plgpu.load(scale.at[page, offset, head], mask=mask, other=0.0)[None]


def _dot(a: Array, b: Array) -> Array:
    full = a.dtype == jnp.float32
    precision = lax.Precision.HIGHEST if full else None
    return jnp.dot(a, b, precision=precision, preferred_element_type=jnp.float32)


def _value_dtype(dtype: Any, keys: Keys) -> Any:
    """Weights times the factor of a value may be too small for float16, never for bfloat16."""
    return jnp.bfloat16 if keys.v_scale is not None and dtype == jnp.float16 else dtype
