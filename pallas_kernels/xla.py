"""Ragged paged attention in plain XLA: the reference of every back end, and the path taken on the CPU.

Queries are cut into *tiles* of consecutive tokens of one sequence, keys into *chunks* of a few pages. A tile and a chunk
it can see make one work item; the flat list of items is walked by a loop whose trip count is data. So the cost follows
the tokens really cached, not the widest table times the batch, and one program serves every batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array

# A finite stand-in for -inf: differences of two masked scores stay numbers.
MASKED = -1e30


@dataclass(frozen=True)
class Config:
    """Tuning of the XLA path.

    Attributes:
        query_tile: query tokens per tile; 1 is right for any batch and best for pure decode.
        chunk_tokens: keys per work item, rounded up to whole pages.
        items: work items per loop iteration.
    """

    query_tile: int
    chunk_tokens: int
    items: int

    @classmethod
    def choose(cls, num_tokens: int, num_seqs: int) -> Config:
        """Heuristic from static shapes alone, so that results never depend on a batch's content."""
        if num_tokens <= num_seqs:
            return cls(query_tile=1, chunk_tokens=64, items=max(4, min(32, num_tokens)))
        return cls(query_tile=16, chunk_tokens=128, items=8)


class _Tiles(NamedTuple):
    """What each tile `[num_tiles]` works on, and where its items stand in the flat list."""

    seq: Array
    first_token: Array
    num_tokens: Array
    first_position: Array
    first_page: Array
    first_item: Array
    end_item: Array


def ragged_paged_attention(
    q: Array,
    k_pages: Array,
    v_pages: Array,
    block_tables: Array,
    kv_lens: Array,
    query_start: Array,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    return_lse: bool = False,
    config: Config | None = None,
) -> Array | tuple[Array, Array]:
    """See `pallas_kernels.ragged_paged_attention`."""
    num_tokens, num_heads, head_dim = q.shape
    _, num_kv_heads, page_size, _ = k_pages.shape
    group = num_heads // num_kv_heads
    config = config or Config.choose(num_tokens, block_tables.shape[0])
    chunk_pages = -(-config.chunk_tokens // page_size)
    chunk = chunk_pages * page_size
    items, query_tile = config.items, config.query_tile
    tiles = _cut(kv_lens, query_start, num_tokens, query_tile, page_size, chunk, window, items)
    num_tiles = tiles.seq.shape[0]
    num_items = tiles.end_item[-1]
    queries = (q.astype(jnp.float32) * scale).reshape(num_tokens, num_kv_heads, group, head_dim)
    in_tile = jnp.arange(query_tile)
    in_chunk = jnp.arange(chunk)

    def scores_and_values(tile: Array, item: Array) -> tuple[Array, Array, Array]:
        tokens = jnp.minimum(tiles.first_token[tile][:, None] + in_tile, num_tokens - 1)
        columns = tiles.first_page[tile] + (item - tiles.first_item[tile]) * chunk_pages
        position = columns[:, None] * page_size + in_chunk
        visible = (position < kv_lens[tiles.seq[tile]][:, None]) & (item < num_items)[:, None]
        columns = jnp.minimum(columns[:, None] + jnp.arange(chunk_pages), block_tables.shape[1] - 1)
        pages = jnp.where(visible[:, ::page_size], block_tables[tiles.seq[tile][:, None], columns], 0)
        keys, values = _read(k_pages, k_scale, pages), _read(v_pages, v_scale, pages)
        # [items, kv_heads, tile, group, chunk]
        score = jnp.einsum(
            "iqhgd,ihcd->ihqgc", queries[tokens], keys, precision=lax.Precision.HIGHEST
        )
        if softcap is not None:
            score = softcap * jnp.tanh(score / softcap)
        at = tiles.first_position[tile][:, None] + in_tile
        seen = visible[:, None, :] & (position[:, None, :] <= at[:, :, None])
        seen &= (in_tile < tiles.num_tokens[tile][:, None])[:, :, None]
        if window is not None:
            seen &= position[:, None, :] > at[:, :, None] - window
        values = jnp.where(visible[:, None, :, None], values, 0.0)
        return score, seen[:, None, :, None, :], values

    def step(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        done, top, total, out = carry
        item = done * items + jnp.arange(items)
        tile = jnp.minimum(jnp.sum(item[:, None] >= tiles.end_item, axis=1), num_tiles - 1)
        score, seen, values = scores_and_values(tile, item)
        score = jnp.where(seen, score, MASKED)
        item_top = jnp.max(score, axis=-1)
        weight = jnp.where(seen, jnp.exp(score - item_top[..., None]), 0.0)
        item_total = jnp.sum(weight, axis=-1)
        item_out = jnp.einsum(
            "ihqgc,ihcd->ihqgd", weight, values, precision=lax.Precision.HIGHEST
        )
        # The items of one iteration touch at most `items` neighbouring tiles.
        first = tile[0]
        mine = (tile - first) == jnp.arange(items)[:, None]
        old_top = lax.dynamic_slice_in_dim(top, first, items)
        new_top = jnp.maximum(
            old_top,
            jnp.max(jnp.where(mine[..., None, None, None], item_top, MASKED), axis=1),
        )
        keep = jnp.exp(old_top - new_top)
        share = jnp.exp(item_top - new_top[jnp.minimum(tile - first, items - 1)])
        pick = mine.astype(jnp.float32)

        def add(acc: Array, part: Array, keep: Array) -> Array:
            old = lax.dynamic_slice_in_dim(acc, first, items)
            gathered = jnp.dot(pick, part.reshape(items, -1), precision=lax.Precision.HIGHEST)
            new = old * keep + gathered.reshape(old.shape)
            return lax.dynamic_update_slice_in_dim(acc, new, first, 0)

        top = lax.dynamic_update_slice_in_dim(top, new_top, first, 0)
        total = add(total, item_total * share, keep)
        out = add(out, item_out * share[..., None], keep[..., None])
        return done + 1, top, total, out

    rows = (num_tiles, num_kv_heads, query_tile, group)
    carry = (
        jnp.int32(0),
        jnp.full(rows, MASKED, jnp.float32),
        jnp.zeros(rows, jnp.float32),
        jnp.zeros((*rows, head_dim), jnp.float32),
    )
    _, top, total, out = lax.while_loop(lambda carry: carry[0] * items < num_items, step, carry)
    if sinks is not None:
        total, out, top = _add_sinks(total, out, top, sinks.reshape(num_kv_heads, 1, group))
    out = out / jnp.where(total == 0, 1.0, total)[..., None]
    lse = jnp.where(total == 0, -jnp.inf, top + jnp.log(jnp.where(total == 0, 1.0, total)))

    token = jnp.arange(num_tokens)
    tile = jnp.sum(token[:, None] >= (tiles.first_token + tiles.num_tokens), axis=1)
    tile = jnp.minimum(tile, num_tiles - 1)
    offset = jnp.clip(token - tiles.first_token[tile], 0, query_tile - 1)
    real = token < query_start[-1]
    out = jnp.where(real[:, None, None, None], out[tile, :, offset], 0.0)
    out = out.reshape(q.shape).astype(q.dtype)
    if not return_lse:
        return out
    lse = jnp.where(real[:, None, None], lse[tile, :, offset], -jnp.inf)
    return out, lse.reshape(num_tokens, num_heads)


def write_kv(
    k_pages: Array, v_pages: Array, k: Array, v: Array, slot_mapping: Array
) -> tuple[Array, Array]:
    """See `pallas_kernels.write_kv`."""
    page_size = k_pages.shape[2]
    page, offset = slot_mapping // page_size, slot_mapping % page_size
    return (
        k_pages.at[page, :, offset].set(k.astype(k_pages.dtype), mode="promise_in_bounds"),
        v_pages.at[page, :, offset].set(v.astype(v_pages.dtype), mode="promise_in_bounds"),
    )


def copy_pages(pages: Array, source: Array, destination: Array, count: Array) -> Array:
    """See `pallas_kernels.copy_pages`."""

    def copy(i: Array, pages: Array) -> Array:
        page = lax.dynamic_index_in_dim(pages, source[i], keepdims=True)
        return lax.dynamic_update_slice_in_dim(pages, page, destination[i], 0)

    return lax.fori_loop(0, count, copy, pages)


def _cut(
    kv_lens: Array,
    query_start: Array,
    num_tokens: int,
    query_tile: int,
    page_size: int,
    chunk: int,
    window: int | None,
    spare: int,
) -> _Tiles:
    """Cut each sequence's queries into tiles; `spare` empty tiles at the end keep windows of tiles in bounds."""
    num_seqs = kv_lens.shape[0]
    query_lens = query_start[1:] - query_start[:-1]
    per_seq = (query_lens + query_tile - 1) // query_tile
    end = jnp.cumsum(per_seq)
    most = num_tokens // query_tile + (num_seqs if query_tile > 1 else 0)
    tile = jnp.arange(min(most, num_tokens) + spare)
    seq = jnp.minimum(jnp.sum(tile[:, None] >= end, axis=1), num_seqs - 1)
    used = tile < end[-1]
    skipped = (tile - (end - per_seq)[seq]) * query_tile
    first_token = jnp.where(used, query_start[seq] + skipped, num_tokens)
    count = jnp.where(used, jnp.minimum(query_lens[seq] - skipped, query_tile), 0)
    first_position = kv_lens[seq] - query_lens[seq] + skipped
    start = jnp.zeros_like(tile) if window is None else first_position - window + 1
    first_page = jnp.maximum(start, 0) // page_size
    span = first_position + count - first_page * page_size
    num_items = jnp.where(used, (span + chunk - 1) // chunk, 0)
    end_item = jnp.cumsum(num_items)
    return _Tiles(
        seq, first_token, count, first_position, first_page, end_item - num_items, end_item
    )


def _read(pages: Array, scale: Array | None, index: Array) -> Array:
    """Gather `index[items, chunk_pages]` as float32 `[items, kv_heads, chunk, head_dim]`."""
    items, chunk_pages = index.shape
    _, num_kv_heads, page_size, head_dim = pages.shape
    read = pages.at[index].get(mode="promise_in_bounds").astype(jnp.float32)
    if scale is not None:
        read *= jnp.swapaxes(scale[index].astype(jnp.float32), 2, 3)[..., None]
    return read.swapaxes(1, 2).reshape(items, num_kv_heads, chunk_pages * page_size, head_dim)


def _add_sinks(total: Array, out: Array, top: Array, sinks: Array) -> tuple[Array, Array, Array]:
    new_top = jnp.maximum(top, sinks)
    keep = jnp.exp(top - new_top)
    seen = total > 0
    total = jnp.where(seen, total * keep + jnp.exp(sinks - new_top), 0.0)
    return total, out * keep[..., None], new_top
