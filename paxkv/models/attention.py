"""Attention of one layer: projections, norms of queries and keys, rotation, pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from paxkv.models.config import ModelConfig
from paxkv.models.linear import linear
from paxkv.models.norm import rms_norm
from paxkv.models.rope import Rotations, rotate

Array = jax.Array
# What `pallas_kernels.write_kv` and `ragged_paged_attention` are, options bound.
WriteKV = Callable[..., tuple[Array, ...]]
Attend = Callable[..., Any]

# Up to this many tokens XLA must not rewrite a transposed matmul by swapping its operands: it would
# pack the weight instead, which pays off only with more tokens.
FEW_TOKENS = 64


class Step(NamedTuple):
    """The tokens of one step, and where their keys and values live.

    Attributes:
        token_ids, positions: `[num_tokens]` int32.
        slot_mapping: `[num_tokens]` int32, `page * block_size + offset`; padding writes to page 0.
        block_tables: `[num_seqs, max_pages]` int32.
        kv_lens: `[num_seqs]` int32, this step's tokens included.
        query_start: `[num_seqs + 1]` int32.
    """

    token_ids: Array
    positions: Array
    slot_mapping: Array
    block_tables: Array
    kv_lens: Array
    query_start: Array


def attention(
    layer: dict[str, Array],
    pages: tuple[Array, ...],
    h: Array,
    rotations: Rotations,
    step: Step,
    config: ModelConfig,
    write: WriteKV,
    attend: Attend,
) -> tuple[Array, tuple[Array, ...]]:
    """Write the keys and values of `h [hidden_size, num_tokens]`, then attend over the pages.

    Returns:
        The output `[hidden_size, num_tokens]` and the pages.
    """
    qkv = linear(layer["qkv"], h, layer.get("qkv_bias"))
    if h.shape[1] <= FEW_TOKENS:
        qkv = lax.optimization_barrier(qkv)
    qkv = qkv.T.reshape(-1, config.num_heads + 2 * config.num_kv_heads, config.head_dim)
    q, k, v = jnp.split(qkv, (config.num_heads, config.num_heads + config.num_kv_heads), axis=1)
    if config.qk_norm:
        q = rms_norm(q, layer["q_norm"], config, axis=-1)
        k = rms_norm(k, layer["k_norm"], config, axis=-1)
    q, k = rotate(q, rotations), rotate(k, rotations)
    pages = write(*pages[:2], k, v, step.slot_mapping, **_factors(pages))
    out = attend(
        q,
        *pages[:2],
        step.block_tables,
        step.kv_lens,
        step.query_start,
        **_factors(pages),
    )
    return linear(layer["o"], out.reshape(-1, config.q_size).T, layer.get("o_bias")), pages


def _factors(pages: tuple[Array, ...]) -> dict[str, Array]:
    return dict(zip(("k_scale", "v_scale"), pages[2:]))
