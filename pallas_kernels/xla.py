"""Ragged paged attention in plain XLA: the reference of every back end, and the path taken on the
CPU.

Queries are cut into *tiles* of consecutive tokens of one sequence, keys into *chunks* of a few
pages. A tile and a chunk it can see make one work item; the flat list of items is walked by a loop
whose trip count is data. So the cost follows the tokens really cached, not the widest table times
the batch, and one program serves every batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import export, lax

from pallas_kernels.contract import STANDARD, AttentionInputs, AttentionOptions, KVLayout
from pallas_kernels.dispatch import Call
from pallas_kernels.quantized.activations import quantize

Array = jax.Array

# The scores want keys transposed: decode attention takes three quarters of the time on a CPU.
page_layout = KVLayout(transposed_keys=True)

# A finite stand-in for -inf: differences of two masked scores stay numbers.
MASKED = -1e30
_FULL = lax.Precision.HIGHEST
# Columns of a work item before its pages.
_FIXED = 6


@dataclass(frozen=True)
class Config:
    """Tuning of the XLA path.

    Attributes:
        query_tile: query tokens per tile; 1 is right for any batch and best for pure decode.
        chunk_tokens: keys per work item, rounded up to whole pages.
        items: work items per loop iteration. With 1, a sequence gets the same bits whatever else
            is in the batch: how its sums are grouped is then its own affair.
        one_each: no sequence has more than one query token, so that a tile each will do.
    """

    query_tile: int
    chunk_tokens: int
    items: int
    one_each: bool = False

    @classmethod
    def choose(cls, num_tokens: int, num_seqs: int, batch_invariant: bool = False) -> Config:
        """Heuristic from static shapes alone; `batch_invariant` is `items=1`."""
        if num_tokens <= num_seqs:
            items = 1 if batch_invariant else min(32, 4 * num_tokens)
            return cls(query_tile=1, chunk_tokens=64, items=items)
        return cls(query_tile=32, chunk_tokens=64, items=1 if batch_invariant else 8)

    @property
    def parts(self) -> tuple[Config, ...]:
        """With tiles of several tokens, sequences of one token are worked through apart, unless
        a token must have the same bits whichever others are computed with it.
        """
        if self.query_tile == 1 or self.items == 1:
            return (self,)
        return (replace(self, query_tile=1, items=32, one_each=True), self)


class _Tiles(NamedTuple):
    """What each tile `[num_tiles]` holds: tokens `first_token ...` of `seq`, from
    `first_position` on.
    """

    seq: Array
    first_token: Array
    num_tokens: Array
    first_position: Array


class WorkList(NamedTuple):
    """The work on some of a step's sequences; the same for every layer with the same window.

    What `prepare` makes, one for each of the configuration's parts.

    items: int32 `[num_items, 6 + chunk_pages]`. Per item its tile; the position of its first key;
        one past the last cached key of its sequence (0 beyond the list); the tile's first token,
        number of tokens and first position; the pages. One array, so that the loop slices once.
    num_items: how many are listed.
    tile, offset: `[num_tokens]`, where each token's result is; the offset is -1 where not here.
    """

    items: Array
    num_items: Array
    tile: Array
    offset: Array


export.register_namedtuple_serialization(WorkList, serialized_name="pallas_kernels.WorkList")


def check(call: Call) -> None:
    """Cover every call."""
    del call


def prepare(
    block_tables: Array,
    kv_lens: Array,
    query_start: Array,
    num_tokens: int,
    page_size: int,
    options: AttentionOptions,
) -> tuple[WorkList, ...]:
    """List the work of `attention`."""
    config = _config(options, num_tokens, block_tables.shape[0])
    query_lens = query_start[1:] - query_start[:-1]
    groups = [query_lens > 0]
    if len(config.parts) == 2:
        groups = [query_lens == 1, query_lens > 1]
    parts = []
    for part, takes in zip(config.parts, groups, strict=True):
        chunk_pages = -(-part.chunk_tokens // page_size)
        tiles = _cut(kv_lens, query_start, takes, num_tokens, part)
        work = _pair(tiles, kv_lens, block_tables, page_size, chunk_pages, options.window, part)
        token = jnp.arange(num_tokens)[:, None]
        inside = (token >= tiles.first_token) & (token < tiles.first_token + tiles.num_tokens)
        tile = jnp.argmax(inside, axis=1)
        offset = jnp.where(inside.any(1), token[:, 0] - tiles.first_token[tile], -1)
        parts.append(WorkList(*work, tile, offset))
    return tuple(parts)


def attention(inputs: AttentionInputs, options: AttentionOptions) -> Array | tuple[Array, Array]:
    """See `pallas_kernels.ragged_paged_attention`."""
    q, num_seqs = inputs.q, inputs.block_tables.shape[0]
    config = _config(options, q.shape[0], num_seqs)
    work_lists = inputs.prepared
    if work_lists is None:
        work_lists = prepare(
            inputs.block_tables,
            inputs.kv_lens,
            inputs.query_start,
            q.shape[0],
            inputs.v_pages.shape[2],
            options,
        )
    found = [
        _attend(inputs, options, part, part_config)
        for part, part_config in zip(work_lists, config.parts, strict=True)
    ]
    out, lse = found[0]
    for other, other_lse in found[1:]:
        out, lse = out + other, jnp.maximum(lse, other_lse)
    return (out, lse) if options.return_lse else out


def _config(options: AttentionOptions, num_tokens: int, num_seqs: int) -> Config:
    return options.config or Config.choose(num_tokens, num_seqs, options.batch_invariant)


def _attend(
    inputs: AttentionInputs, options: AttentionOptions, part: WorkList, config: Config
) -> tuple[Array, Array]:
    """Output and log-sum-exp of the tokens of one part; 0 and -inf everywhere else."""
    q, k_pages, v_pages, sinks = inputs.q, inputs.k_pages, inputs.v_pages, inputs.sinks
    window, softcap = options.window, options.softcap
    num_tokens, num_heads, head_dim = q.shape
    _, num_kv_heads, page_size, _ = v_pages.shape
    group = num_heads // num_kv_heads
    chunk = -(-config.chunk_tokens // page_size) * page_size
    items, query_tile = config.items, config.query_tile
    num_items = part.num_items
    queries = (q.astype(jnp.float32) * options.scale).reshape(
        num_tokens, num_kv_heads, group, head_dim
    )
    in_tile = jnp.arange(query_tile)
    in_chunk = jnp.arange(chunk)

    def step(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        done, row_max, acc = carry
        item = lax.dynamic_slice_in_dim(part.items, done * items, items)
        tile, start, end, first_token, count, first_position = item[:, :_FIXED].T
        pages = item[:, _FIXED:]
        keys = _read_by_dim(k_pages, inputs.k_scale, pages, options.layout)
        values = _read(v_pages, inputs.v_scale, pages)
        tokens = jnp.minimum(first_token[:, None] + in_tile, num_tokens - 1)
        # [items, kv_heads, tile, group, chunk]
        score = jnp.einsum("iqhgd,ihdc->ihqgc", queries[tokens], keys, precision=_FULL)
        if softcap is not None:
            score = softcap * jnp.tanh(score / softcap)
        at = first_position[:, None] + in_tile
        last = jnp.where(in_tile < count[:, None], at, -1)
        position = start[:, None] + in_chunk
        cached = position < end[:, None]
        seen = cached[:, None] & (position[:, None] <= last[..., None])
        if window is not None:
            seen &= position[:, None] > last[..., None] - window
        score = jnp.where(seen[:, None, :, None], score, MASKED)
        item_top = jnp.maximum(jnp.max(score, axis=-1), MASKED / 2)
        weight = jnp.exp(score - item_top[..., None])
        values = jnp.where(cached[:, None, :, None], values, 0.0)
        new = jnp.concatenate(
            (
                jnp.einsum("ihqgc,ihcd->ihqgd", weight, values, precision=_FULL),
                jnp.sum(weight, axis=-1, keepdims=True),
            ),
            axis=-1,
        )
        # The items of one iteration touch at most `items` neighbouring tiles.
        first = tile[0]
        mine = (tile - first) == jnp.arange(items)[:, None]
        old_top = lax.dynamic_slice_in_dim(row_max, first, items)
        old_acc = lax.dynamic_slice_in_dim(acc, first, items)
        tops = jnp.where(mine[..., None, None, None], item_top, MASKED)
        new_top = jnp.maximum(old_top, jnp.max(tops, axis=1))
        own_top = new_top[jnp.minimum(tile - first, items - 1)]
        new *= jnp.exp(jnp.minimum(item_top - own_top, 0.0))[..., None]
        new = new.reshape(items, -1)
        # Zeros times one sequence's NaN would reach the others.
        sums = jnp.sum(new, axis=-1)
        broken = ~jnp.isfinite(sums)
        new = jnp.where(broken[:, None], 0.0, new)
        gathered = jnp.dot(mine.astype(jnp.float32), new, precision=_FULL).reshape(old_acc.shape)
        poison = jnp.where(jnp.any(mine & broken, axis=1), jnp.nan, 0.0)
        new_acc = old_acc * jnp.exp(old_top - new_top)[..., None] + gathered
        new_acc += poison[:, None, None, None, None]
        return (
            done + 1,
            lax.dynamic_update_slice_in_dim(row_max, new_top, first, 0),
            lax.dynamic_update_slice_in_dim(acc, new_acc, first, 0),
        )

    num_tiles = _num_tiles(num_tokens, inputs.block_tables.shape[0], config)
    rows = (num_tiles, num_kv_heads, query_tile, group)
    carry = (
        jnp.int32(0),
        jnp.full(rows, MASKED, jnp.float32),
        jnp.zeros((*rows, head_dim + 1), jnp.float32),
    )
    _, row_max, acc = lax.while_loop(lambda carry: carry[0] * items < num_items, step, carry)
    out, total = acc[..., :-1], acc[..., -1]
    if sinks is not None:
        total, out, row_max = _add_sinks(total, out, row_max, sinks.reshape(num_kv_heads, 1, group))
    out = out / jnp.where(total == 0, 1.0, total)[..., None]
    lse = jnp.where(total == 0, -jnp.inf, row_max + jnp.log(jnp.where(total == 0, 1.0, total)))

    offset = jnp.maximum(part.offset, 0)
    here = (part.offset >= 0)[:, None, None]
    out = jnp.where(here[..., None], out[part.tile, :, offset], 0.0)
    lse = jnp.where(here, lse[part.tile, :, offset], -jnp.inf)
    return out.reshape(q.shape).astype(q.dtype), lse.reshape(num_tokens, num_heads)


def write_kv(
    k_pages: Array,
    v_pages: Array,
    k: Array,
    v: Array,
    slot_mapping: Array,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    *,
    layout: KVLayout = STANDARD,
) -> tuple[Array, ...]:
    """See `pallas_kernels.write_kv`."""
    page_size = v_pages.shape[2]
    page, offset = slot_mapping // page_size, slot_mapping % page_size
    turned = layout.transposed_keys
    slots = k_pages.at[page, :, :, offset] if turned else k_pages.at[page, :, offset]
    factors = []
    if k_scale is not None and v_scale is not None:
        k, new_k_scale = quantize(k, k_pages.dtype)
        v, new_v_scale = quantize(v, v_pages.dtype)
        factors = [
            scale.at[page, offset].set(new, mode="promise_in_bounds")
            for scale, new in ((k_scale, new_k_scale), (v_scale, new_v_scale))
        ]
    return (
        slots.set(k.astype(k_pages.dtype), mode="promise_in_bounds"),
        v_pages.at[page, :, offset].set(v.astype(v_pages.dtype), mode="promise_in_bounds"),
        *factors,
    )


def copy_pages(pages: Array, source: Array, destination: Array, count: Array) -> Array:
    """See `pallas_kernels.copy_pages`."""

    def copy(i: Array, pages: Array) -> Array:
        page = lax.dynamic_index_in_dim(pages, source[i], keepdims=True)
        return lax.dynamic_update_slice_in_dim(pages, page, destination[i], 0)

    return lax.fori_loop(0, count, copy, pages)


def _num_tiles(num_tokens: int, num_seqs: int, config: Config) -> int:
    """Most tiles there can be, and as many empty ones as an iteration looks at."""
    if config.one_each:
        return min(num_seqs, num_tokens) + config.items
    partial_tiles = num_seqs if config.query_tile > 1 else 0
    return min(num_tokens // config.query_tile + partial_tiles, num_tokens) + config.items


def _cut(
    kv_lens: Array, query_start: Array, takes: Array, num_tokens: int, config: Config
) -> _Tiles:
    """Cut the queries of the sequences in `takes` into tiles, the empty ones at the end."""
    num_seqs = kv_lens.shape[0]
    query_tile = config.query_tile
    query_lens = jnp.where(takes, query_start[1:] - query_start[:-1], 0)
    per_seq = (query_lens + query_tile - 1) // query_tile
    end = jnp.cumsum(per_seq)
    tile = jnp.arange(_num_tiles(num_tokens, num_seqs, config))
    seq = jnp.minimum(jnp.sum(tile[:, None] >= end, axis=1), num_seqs - 1)
    used = tile < end[-1]
    skipped = (tile - (end - per_seq)[seq]) * query_tile
    return _Tiles(
        seq=seq,
        first_token=jnp.where(used, query_start[seq] + skipped, num_tokens),
        num_tokens=jnp.where(used, jnp.minimum(query_lens[seq] - skipped, query_tile), 0),
        first_position=kv_lens[seq] - query_lens[seq] + skipped,
    )


def _pair(
    tiles: _Tiles,
    kv_lens: Array,
    block_tables: Array,
    page_size: int,
    chunk_pages: int,
    window: int | None,
    config: Config,
) -> tuple[Array, Array]:
    """List the chunks each tile can see, tile by tile, and count them; the list is padded to
    whole iterations.
    """
    items = config.items
    chunk = chunk_pages * page_size
    first_page = jnp.zeros_like(tiles.seq)
    if window is not None:
        # Chunks begin where they would without a window, however the queries are cut.
        first_page = jnp.maximum(tiles.first_position - window + 1, 0) // chunk * chunk_pages
    span = tiles.first_position + tiles.num_tokens - first_page * page_size
    per_tile = jnp.where(tiles.num_tokens > 0, (span + chunk - 1) // chunk, 0)
    end = jnp.cumsum(per_tile)
    most = (tiles.seq.shape[0] - items) * -(-block_tables.shape[1] // chunk_pages)
    item = jnp.arange(-(-most // items) * items)
    # Tiles whose items have all come before this one.
    ended = jnp.cumsum(jnp.zeros_like(item).at[end].add(1, mode="drop"))
    tile = jnp.minimum(ended, tiles.seq.shape[0] - items)
    listed = item < end[-1]
    seq = tiles.seq[tile]
    column = first_page[tile] + (item - (end - per_tile)[tile]) * chunk_pages
    start = column * page_size
    stop = jnp.where(listed, kv_lens[seq], 0)
    columns = column[:, None] + jnp.arange(chunk_pages)
    held = columns * page_size < stop[:, None]
    pages = block_tables[seq[:, None], jnp.where(held, columns, 0)]
    fixed = (
        tile,
        start,
        stop,
        tiles.first_token[tile],
        tiles.num_tokens[tile],
        tiles.first_position[tile],
    )
    return jnp.column_stack((*fixed, jnp.where(held, pages, 0))), end[-1]


def _read(pages: Array, scale: Array | None, index: Array) -> Array:
    """Gather `index[items, chunk_pages]` as float32 `[items, kv_heads, chunk, head_dim]`."""
    items, chunk_pages = index.shape
    _, num_kv_heads, page_size, head_dim = pages.shape
    read = pages.at[index].get(mode="promise_in_bounds").astype(jnp.float32)
    if scale is not None:
        read *= jnp.swapaxes(scale[index].astype(jnp.float32), 2, 3)[..., None]
    return read.swapaxes(1, 2).reshape(items, num_kv_heads, chunk_pages * page_size, head_dim)


def _read_by_dim(pages: Array, scale: Array | None, index: Array, layout: KVLayout) -> Array:
    """Gather keys as float32 `[items, kv_heads, head_dim, chunk]`.

    XLA's CPU matmul reads that fastest, and would undo it if it could.
    """
    if not layout.transposed_keys:
        return lax.optimization_barrier(jnp.swapaxes(_read(pages, scale, index), 2, 3))
    items, chunk_pages = index.shape
    _, num_kv_heads, head_dim, page_size = pages.shape
    read = pages.at[index].get(mode="promise_in_bounds").astype(jnp.float32)
    if scale is not None:
        read *= jnp.swapaxes(scale[index].astype(jnp.float32), 2, 3)[:, :, :, None]
    read = read.transpose(0, 2, 3, 1, 4)
    return lax.optimization_barrier(
        read.reshape(items, num_kv_heads, head_dim, chunk_pages * page_size)
    )


def _add_sinks(
    total: Array, out: Array, row_max: Array, sinks: Array
) -> tuple[Array, Array, Array]:
    new_top = jnp.maximum(row_max, sinks)
    keep = jnp.exp(row_max - new_top)
    seen = total > 0
    total = jnp.where(seen, total * keep + jnp.exp(sinks - new_top), 0.0)
    return total, out * keep[..., None], new_top
