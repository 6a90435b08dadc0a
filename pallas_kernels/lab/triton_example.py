"""An attention kernel to start from: the shortest that passes the battery, with no speed in mind.

One program takes one query token and one key head, and walks the keys in blocks of 32. Try it with
    python -m pallas_kernels.lab verify --kernel pallas_kernels/lab/triton_example.py:attention
"""

# mypy: disable-error-code="no-untyped-def"
import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.dispatch import current_target

KEYS = 32


def attention(
    q, k_pages, v_pages, block_tables, kv_lens, query_start, *, scale=None, return_lse=False, **more
):
    if any(option is not None for option in more.values()):
        raise NotImplementedError("the example knows no windows, caps, sinks or one-byte pages")
    num_tokens, num_heads, head_dim = q.shape
    token = jnp.arange(num_tokens)
    # The sequence of each token, and how many keys it sees: none if it is padding.
    seq = jnp.minimum(jnp.searchsorted(query_start, token, side="right"), len(kv_lens)) - 1
    seen = kv_lens[seq] - query_start[seq + 1] + token + 1
    seen = jnp.where(token < query_start[-1], seen, 0)
    kernel = functools.partial(
        _kernel, scale=scale or head_dim**-0.5, group=num_heads // v_pages.shape[1]
    )
    out, lse = pl.pallas_call(
        kernel,
        out_shape=(
            jax.ShapeDtypeStruct(q.shape, q.dtype),
            jax.ShapeDtypeStruct(q.shape[:2], jnp.float32),
        ),
        grid=(num_tokens, v_pages.shape[1]),
        compiler_params=plgpu.CompilerParams(num_warps=4),
        interpret=current_target() == "cpu",
    )(seq.astype(jnp.int32), seen, block_tables, q, k_pages, v_pages)
    return (out, lse) if return_lse else out


def _kernel(seq, seen, tables, q, k_pages, v_pages, out, lse, *, scale, group):
    token, key_head = pl.program_id(0), pl.program_id(1)
    page_size, head_dim = v_pages.shape[2:]
    # Sizes in Triton are powers of two, and a matrix product takes 16 rows: the rest is masked.
    row = jnp.arange(max(16, pl.next_power_of_2(group)))
    lane = jnp.arange(pl.next_power_of_2(head_dim))
    head = key_head * group + row
    inside = (row < group)[:, None] & (lane < head_dim)[None]
    queries = plgpu.load(q.at[token, head[:, None], lane[None]], mask=inside, other=0.0)

    def step(block, carry):
        row_max, total, acc = carry
        position = block * KEYS + jnp.arange(KEYS)
        mask = position < seen[token]
        page = plgpu.load(tables.at[seq[token], position // page_size], mask=mask, other=0)
        where = (page[:, None], key_head, (position % page_size)[:, None], lane[None])
        readable = mask[:, None] & (lane < head_dim)[None]
        k = plgpu.load(k_pages.at[where], mask=readable, other=0.0).astype(q.dtype)
        v = plgpu.load(v_pages.at[where], mask=readable, other=0.0).astype(q.dtype)
        scores = jnp.where(mask[None], _dot(queries, k.T) * scale, -1e30)
        # The softmax so far: `total` and `acc` are relative to the largest score, `row_max`.
        new_top = jnp.maximum(row_max, scores.max(axis=1))
        weight, keep = jnp.exp(scores - new_top[:, None]), jnp.exp(row_max - new_top)
        acc = acc * keep[:, None] + _dot(weight.astype(q.dtype), v)
        return new_top, total * keep + weight.sum(axis=1), acc

    rows = row.shape[0]
    start = (jnp.full(rows, -5e29), jnp.zeros(rows), jnp.zeros((rows, lane.shape[0])))
    row_max, total, acc = jax.lax.fori_loop(0, pl.cdiv(seen[token], KEYS), step, start)
    share = acc / jnp.where(total > 0, total, 1.0)[:, None]
    plgpu.store(out.at[token, head[:, None], lane[None]], share.astype(out.dtype), mask=inside)
    found = jnp.where(total > 0, row_max + jnp.log(jnp.where(total > 0, total, 1.0)), -jnp.inf)
    plgpu.store(lse.at[token, head], found, mask=row < group)


def _dot(a, b):
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jnp.dot(a, b, precision=precision, preferred_element_type=jnp.float32)
