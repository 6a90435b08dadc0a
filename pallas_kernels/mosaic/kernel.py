"""Attention over pages as one Hopper kernel, for decoding and prefill alike.

A program takes a tile of queries, a key head and a share of the keys (a *split*). Its last
warpgroup copies pages, one TMA copy each, into a ring of blocks of keys in shared memory; the
others multiply, 64 rows of queries each, and keep a running softmax (FlashAttention-3, Shah et al.
2024, sections 3.1 and 3.2, without its overlap of products and softmax). Barriers say when a block
of the ring has come and when it is free again.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.dispatch import current_target
from pallas_kernels.mosaic.tuning import ROWS, Tile, copied_rows

Array = jax.Array

# A finite stand-in for -inf: the difference of two masked scores stays a number.
_MASKED = -1e30
_LOG2E = math.log2(math.e)
# Registers of a thread that copies and of one that multiplies, by the warpgroups that multiply.
_REGISTERS = {1: (56, 240), 2: (40, 232)}


class Score(NamedTuple):
    """How a score is made of a query and a key; static."""

    scale: float
    window: int | None
    softcap: float | None


class Shape(NamedTuple):
    """Static sizes of a launch beyond those of the tile."""

    group: int
    per_tile: int
    page_size: int
    num_kv_heads: int


class Ring(NamedTuple):
    """Blocks of keys and values in shared memory, and their barriers; an entry per stage."""

    k: Any
    v: Any
    k_here: Any
    v_here: Any
    k_free: Any
    v_free: Any


class Span(NamedTuple):
    """The keys of a program, int32 scalars.

    Attributes:
        seq: row of the block tables.
        first_position: of the first token of the tile.
        begin: position of the first key.
        end: position behind the last key that any token of the tile sees.
        blocks: how many blocks of keys.
    """

    seq: Array
    first_position: Array
    begin: Array
    end: Array
    blocks: Array


def launch(
    table: Array,
    block_tables: Array,
    k_pages: Array,
    v_pages: Array,
    q: Array,
    score: Score,
    tile: Tile,
    group: int,
    per_tile: int,
    dtype: Any,
) -> tuple[Array, Array]:
    """Attention of tiles of queries.

    Args:
        table: int32 `[num_tiles, 4]`, as in `Tiles`.
        q: `[num_tiles, num_kv_heads, rows, head_dim]`, row `token * group + head` of each tile;
            rows a multiple of 8.
        k_pages, v_pages: `[num_pages, num_kv_heads, page_size, head_dim]`.

    Returns:
        `[splits, num_tiles, num_kv_heads, rows, head_dim]` in `dtype` and log-sum-exps, float32
        `[splits, num_tiles, num_kv_heads, tile.rows]`. Tiles without a token are undefined.
    """
    num_tiles, num_kv_heads, rows, head_dim = q.shape
    page_size = k_pages.shape[2]
    copied = copied_rows(tile, page_size)
    assert copied is not None
    shape = Shape(group, per_tile, page_size, num_kv_heads)
    ring = (tile.stages, tile.keys, head_dim)
    come = plgpu.Barrier(num_arrivals=tile.keys // copied, num_barriers=tile.stages)
    freed = plgpu.Barrier(num_arrivals=tile.consumers, num_barriers=tile.stages)
    # As wide as the bytes of a row allow; both operands of a product have the same.
    swizzle = next(width for width in (128, 64, 32) if head_dim * 2 % width == 0)
    shared = partial(_shared, dtype=q.dtype, swizzle=swizzle)
    scratch = {
        "queries": shared((tile.consumers, ROWS, head_dim)),
        "weights": shared((tile.consumers, ROWS, tile.keys)),
        "ring": Ring(shared(ring), shared(ring), come, come, freed, freed),
        "partial_out": _shared((tile.consumers, ROWS, head_dim), dtype, swizzle)
        if tile.splits > 1
        else None,
        "lse_out": plgpu.SMEM((tile.consumers, ROWS), jnp.float32),
        "queries_here": plgpu.Barrier(num_barriers=tile.consumers),
        "masked": plgpu.Barrier(num_arrivals=tile.consumers),
    }
    out_shape = (tile.splits, num_tiles, num_kv_heads, rows, head_dim)
    rows_of_pages = (-1, head_dim)
    return plgpu.kernel(
        partial(_kernel, score=score, tile=tile, shape=shape, copied=copied),
        out_type=(
            jax.ShapeDtypeStruct(out_shape, dtype),
            jax.ShapeDtypeStruct((*out_shape[:3], tile.rows), jnp.float32),
        ),
        scratch_types=scratch,
        grid=(tile.splits, num_tiles, num_kv_heads),
        grid_names=("split", "tile", "head"),
        num_threads=tile.consumers + 1,
        thread_name="warpgroup",
        kernel_name="mosaic_attention",
        compiler_params=plgpu.CompilerParams(
            approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Lane
        ),
        interpret=plgpu.InterpretGPUParams() if current_target() == "cpu" else None,
    )(table, block_tables, q, k_pages.reshape(rows_of_pages), v_pages.reshape(rows_of_pages))


def _shared(shape: tuple[int, ...], dtype: Any, swizzle: int) -> Any:
    """Shared memory in the tiles that TMA writes and wgmma reads."""
    tiling = (8, swizzle // jnp.dtype(dtype).itemsize)
    transforms = (plgpu.TilingTransform(tiling), plgpu.SwizzleTransform(swizzle))
    return plgpu.SMEM(shape, dtype, transforms=transforms)


def _kernel(
    table: Any,
    block_tables: Any,
    q: Any,
    k_rows: Any,
    v_rows: Any,
    out: Any,
    lse: Any,
    *,
    queries: Any,
    weights: Any,
    ring: Ring,
    partial_out: Any,
    lse_out: Any,
    queries_here: Any,
    masked: Any,
    score: Score,
    tile: Tile,
    shape: Shape,
    copied: int,
) -> None:
    split, at, head = (lax.axis_index(name) for name in ("split", "tile", "head"))
    warpgroup = lax.axis_index("warpgroup")
    seq, tokens, first_position = table[at, 0], table[at, 2], table[at, 3]

    # The keys seen by any token of the tile, and of those the ones of this split.
    begin, end = jnp.int32(0), first_position + tokens
    if score.window is not None:
        begin = jnp.maximum(begin, first_position - (score.window - 1))
    # Whole copies, so that each is in one page.
    begin = lax.div(begin, copied) * copied
    blocks = lax.div(jnp.maximum(end - begin, 0) + (tile.keys - 1), tile.keys)
    share = lax.div(blocks + (tile.splits - 1), tile.splits)
    skipped = jnp.minimum(split * share, blocks)
    span = Span(
        seq,
        first_position,
        begin + skipped * tile.keys,
        end,
        jnp.minimum(blocks - skipped, share),
    )

    @pl.when((tokens > 0) & (warpgroup == tile.consumers))
    def _() -> None:
        plgpu.set_max_registers(_REGISTERS[tile.consumers][0], action="decrease")
        _copy(block_tables, k_rows, v_rows, ring, span, head, tile, shape, copied)

    @pl.when((tokens > 0) & (warpgroup < tile.consumers))
    def _() -> None:
        plgpu.set_max_registers(_REGISTERS[tile.consumers][1], action="increase")
        mine = queries.at[warpgroup]
        rows = min(ROWS, q.shape[2])
        here = pl.ds(warpgroup * ROWS, rows)
        plgpu.copy_gmem_to_smem(
            q.at[at, head, here], mine.at[pl.ds(0, rows)], queries_here.at[warpgroup]
        )
        plgpu.barrier_wait(queries_here.at[warpgroup])
        top, total, acc = _multiply(
            queries, weights, ring, masked, span, warpgroup, score, tile, shape
        )
        some = total > 0
        total = jnp.where(some, total, 1.0)
        found = (top + jnp.log2(total)) / _LOG2E
        lse_out[warpgroup] = jnp.where(some, found, -jnp.inf)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(
            lse_out.at[warpgroup], lse.at[split, at, head, pl.ds(warpgroup * ROWS, ROWS)]
        )
        staged = mine if partial_out is None else partial_out.at[warpgroup]
        staged[...] = (acc / _by_row(total, acc.shape)).astype(out.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(staged.at[pl.ds(0, rows)], out.at[split, at, head, here])
        plgpu.wait_smem_to_gmem(0)


def _copy(
    block_tables: Any,
    k_rows: Any,
    v_rows: Any,
    ring: Ring,
    span: Span,
    head: Array,
    tile: Tile,
    shape: Shape,
    copied: int,
) -> None:
    """Bring the blocks of `span`, one copy for each page or piece of a page."""
    behind_all = k_rows.shape[0]

    def rows_of(block: Array) -> tuple[Array, ...]:
        """Where in the pool each copy of a block begins, counted in rows of head_dim."""
        rows = []
        for index in range(tile.keys // copied):
            position = span.begin + block * tile.keys + index * copied
            column = jnp.minimum(lax.div(position, shape.page_size), block_tables.shape[1] - 1)
            page = block_tables[span.seq, column]
            row = (page * shape.num_kv_heads + head) * shape.page_size
            row += lax.rem(position, shape.page_size)
            # Behind the last key nothing is read: TMA fills what is out of bounds with zeros.
            rows.append(jnp.where(position < span.end, row, behind_all))
        return tuple(rows)

    def send(block: Array, rows: tuple[Array, ...]) -> tuple[Array, ...]:
        stage = lax.rem(block, tile.stages)
        # Looked up before the wait, which hides the latency of the block table.
        next_rows = rows_of(block + 1)
        for pages, there, here, free in (
            (k_rows, ring.k, ring.k_here, ring.k_free),
            (v_rows, ring.v, ring.v_here, ring.v_free),
        ):
            pl.when(block >= tile.stages)(partial(plgpu.barrier_wait, free.at[stage]))
            for index, row in enumerate(rows):
                plgpu.copy_gmem_to_smem(
                    pages.at[pl.ds(row, copied)],
                    there.at[stage, pl.ds(index * copied, copied)],
                    here.at[stage],
                )
        return next_rows

    lax.fori_loop(0, span.blocks, send, rows_of(jnp.int32(0)))

    def drain(block: Array, carry: Array) -> Array:
        stage = lax.rem(block, tile.stages)
        plgpu.barrier_wait(ring.k_free.at[stage])
        plgpu.barrier_wait(ring.v_free.at[stage])
        return carry

    # Every phase of a barrier has somebody who saw it.
    lax.fori_loop(jnp.maximum(span.blocks - tile.stages, 0), span.blocks, drain, jnp.int32(0))


def _multiply(
    queries: Any,
    weights: Any,
    ring: Ring,
    masked: Any,
    span: Span,
    warpgroup: Array,
    score: Score,
    tile: Tile,
    shape: Shape,
) -> tuple[Array, Array, Array]:
    """Maximum and sum of the softmax, `[64]` in powers of two, and the sums of values, `[64,
    head_dim]`.
    """
    head_dim = queries.shape[2]
    by_row = plgpu.Layout.WGMMA.reduce(1)

    # The last key that each row sees.
    last = span.first_position
    if shape.per_tile > 1:
        row = plgpu.broadcasted_iota(jnp.int32, (ROWS,), 0, layout=by_row) + warpgroup * ROWS
        last = last + lax.div(row, shape.group)

    def step(block: Array, carry: Any, *, edge: bool) -> Any:
        top, total, acc = carry
        stage = lax.rem(block, tile.stages)
        late = lax.shift_right_logical(block, jnp.int32(30))
        first = span.begin + block * tile.keys
        plgpu.barrier_wait(ring.k_here.at[stage])

        def products(acc: Any) -> Array:
            # `late` is 0. Not knowing that, the compiler keeps no address of each operand of each
            # product in registers throughout the loop.
            plgpu.wgmma(acc, queries.at[warpgroup + late], ring.k.at[stage].T)
            return acc[...]

        # [64, keys], in units of log 2
        s = pl.run_scoped(products, plgpu.ACC((ROWS, tile.keys), jnp.float32))
        plgpu.barrier_arrive(ring.k_free.at[stage])
        if score.softcap is None:
            s *= score.scale * _LOG2E
        else:
            s = (score.softcap * _LOG2E) * _tanh(s * (score.scale / score.softcap))
        if edge:
            # A column is 8i + 2(thread % 4) + j. Apart, the thread's share is one register and the
            # rest are constants; together, the compiler keeps each sum throughout the loop.
            column = _iota(s.shape, 1)
            limit = last - first
            limit = (_by_row(limit, s.shape) if shape.per_tile > 1 else limit) - (column & 6)
            seen = (column & ~6) <= limit
            if score.window is not None:
                seen &= (column & ~6) > limit - score.window
            s = jnp.where(seen, s, _MASKED)

        new_top = jnp.maximum(top, s.max(axis=1))
        weight = jnp.exp2(s - _by_row(new_top, s.shape))
        keep = jnp.exp2(top - new_top)
        total = total * keep + weight.sum(axis=1)
        weights[warpgroup] = weight.astype(weights.dtype)
        plgpu.commit_smem()

        plgpu.barrier_wait(ring.v_here.at[stage])
        if edge:
            pl.when(first + tile.keys > span.end)(
                partial(_clear, ring.v.at[stage], span.end - first, masked, warpgroup, tile)
            )

        def values(sums: Any) -> Array:
            plgpu.wgmma(sums, weights.at[warpgroup + late], ring.v.at[stage])
            return sums[...]

        new = pl.run_scoped(values, plgpu.ACC((ROWS, head_dim), jnp.float32))
        acc = acc * _by_row(keep, acc.shape) + new
        plgpu.barrier_arrive(ring.v_free.at[stage])
        return new_top, total, acc

    def filled(value: float) -> Array:
        return plgpu.layout_cast(jnp.full((ROWS,), value, jnp.float32), by_row)

    zeros = plgpu.layout_cast(jnp.zeros((ROWS, head_dim), jnp.float32), plgpu.Layout.WGMMA)
    carry: Any = (filled(_MASKED / 2), filled(0.0), zeros)
    # Blocks that every row sees all of come first, and need no mask.
    whole = jnp.int32(0)
    if score.window is None:
        whole = lax.div(jnp.maximum(span.first_position + 1 - span.begin, 0), tile.keys)
        whole = jnp.minimum(whole, span.blocks)
        carry = lax.fori_loop(0, whole, partial(step, edge=False), carry)
    top, total, acc = lax.fori_loop(whole, span.blocks, partial(step, edge=True), carry)
    return top, total, acc


def _clear(values: Any, count: Array, masked: Any, warpgroup: Array, tile: Tile) -> None:
    """Zero the rows from `count` on: a weight of 0 times what may stand there is not always 0."""

    @pl.when(warpgroup == 0)
    def _() -> None:
        content = values[...]
        written = _iota(content.shape, 0) < count
        values[...] = jnp.where(written, content, 0).astype(content.dtype)
        plgpu.commit_smem()

    if tile.consumers > 1:
        plgpu.barrier_arrive(masked)
        plgpu.barrier_wait(masked)


def _iota(shape: tuple[int, ...], axis: int) -> Array:
    return plgpu.broadcasted_iota(jnp.int32, shape, axis, layout=plgpu.Layout.WGMMA)


def _by_row(x: Array, shape: tuple[int, ...]) -> Array:
    return lax.broadcast_in_dim(x, shape, (0,))


def _tanh(x: Array) -> Array:
    """By exp2: the approximate tanh of the hardware is off by 5e-4."""
    return 1.0 - 2.0 / (1.0 + jnp.exp2(x * (2 * _LOG2E)))
