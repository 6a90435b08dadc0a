"""The second pass of split decoding: join the partial results of each row by their log-sum-exps."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.dispatch import current_target
from pallas_kernels.triton.tuning import padded

Array = jax.Array


def merge_splits(
    out: Array,
    lse: Array,
    tokens: Array,
    num_tokens: int,
    dtype: Any,
    into: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """Join `out`, float32 `[splits, num_rows, num_heads, head_dim]`, and `lse` over the splits.

    Args:
        tokens: int32 `[num_rows]`, the token that each row belongs to, -1 for none.
        into: outputs and log-sum-exps of the tokens that have no row; without it they are
            undefined.

    Returns:
        `[num_tokens, num_heads, head_dim]` in `dtype` and float32 `[num_tokens, num_heads]`.
    """
    _, num_rows, num_heads, head_dim = out.shape
    return pl.pallas_call(
        partial(_kernel, head_dim=head_dim),
        out_shape=(
            jax.ShapeDtypeStruct((num_tokens, num_heads, head_dim), dtype),
            jax.ShapeDtypeStruct((num_tokens, num_heads), jnp.float32),
        ),
        grid=(num_heads, num_rows),
        input_output_aliases={} if into is None else {0: 0, 1: 1},
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=current_target() == "cpu",
        name="merge_splits",
    )(into, tokens, out, lse)


def _kernel(
    into: Any,
    tokens: Any,
    partial_out: Any,
    partial_lse: Any,
    out: Any,
    lse: Any,
    *,
    head_dim: int,
) -> None:
    del into  # Aliased to the outputs.
    head, row = pl.program_id(0), pl.program_id(1)
    token = tokens[row]
    split = jnp.arange(partial_lse.shape[0])
    lane = jnp.arange(padded(head_dim))
    in_head = lane < head_dim
    found = plgpu.load(partial_lse.at[split, row, head])
    row_max = jnp.max(found, axis=0)
    row_max = jnp.where(jnp.isneginf(row_max), 0.0, row_max)
    weight = jnp.exp(found - row_max)
    total = jnp.sum(weight, axis=0)
    parts = plgpu.load(
        partial_out.at[split[:, None], row, head, lane[None]], mask=in_head[None], other=0
    )
    share = weight / jnp.where(total > 0, total, 1.0)
    there = token >= 0
    at = jnp.where(there, token, 0)
    plgpu.store(
        out.at[at, head, lane],
        jnp.sum(parts * share[:, None], axis=0).astype(out.dtype),
        mask=in_head & there,
    )
    plgpu.store(
        lse.at[at, head],
        jnp.where(total > 0, row_max + jnp.log(jnp.where(total > 0, total, 1.0)), -jnp.inf),
        mask=there,
    )
