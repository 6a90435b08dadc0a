"""The decoder of the Llama family as pure functions over a paged cache: embed, run_layers,
normalise, logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels import ragged_paged_attention, write_kv
from paxkv.models.config import ModelConfig

Array = jax.Array
Pages = tuple[tuple[Array, Array], ...]
Rotations = tuple[Array, Array]


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


class Rope(NamedTuple):
    """Inverse frequencies, head_dim / 2 of them, and attention factor, from `rope_parameters`."""

    inv_freq: tuple[float, ...]
    factor: float


def embed(embedding: Array, step: Step, rope: Rope) -> tuple[Array, Rotations]:
    """Input rows `[num_tokens, hidden_size]`, and the rotations (cos, sin) of their positions."""
    angle = step.positions[:, None].astype(jnp.float32) * jnp.array(rope.inv_freq, jnp.float32)
    rotations = (jnp.cos(angle) * rope.factor)[:, None], (jnp.sin(angle) * rope.factor)[:, None]
    return embedding[step.token_ids], rotations


def run_layers(
    layers: list[dict[str, Array]],
    pages: Pages,
    x: Array,
    rotations: Rotations,
    step: Step,
    config: ModelConfig,
    attention: Callable[..., Any] = ragged_paged_attention,
) -> tuple[Array, Pages]:
    """Run `x` through consecutive layers: each writes keys and values, then attends over its pages.

    Args:
        layers: their arrays, as `paxkv.models.params.describe(config)` lays them out.
        pages: theirs, (keys, values) of `[num_pages, num_kv_heads, block_size, head_dim]` each.
        x: `[num_tokens, hidden_size]`.
        attention: anything with the contract of `pallas_kernels.ragged_paged_attention`.

    Returns:
        Hidden rows `[num_tokens, hidden_size]` and the pages.
    """
    new_pages = []
    for layer, (k_pages, v_pages) in zip(layers, pages, strict=True):
        h = _rms_norm(x, layer["attn_norm"], config.rms_norm_eps)
        qkv = _linear(h, layer["qkv"], layer.get("qkv_bias"))
        q, k, v = jnp.split(qkv, (config.q_size, config.q_size + config.kv_size), axis=-1)
        q = _rotate(q.reshape(-1, config.num_heads, config.head_dim), rotations)
        k = _rotate(k.reshape(-1, config.num_kv_heads, config.head_dim), rotations)
        v = v.reshape(-1, config.num_kv_heads, config.head_dim)
        k_pages, v_pages = write_kv(k_pages, v_pages, k, v, step.slot_mapping)
        new_pages.append((k_pages, v_pages))
        out = attention(
            q,
            k_pages,
            v_pages,
            step.block_tables,
            step.kv_lens,
            step.query_start,
            window=config.sliding_window,
        )
        x = x + _linear(out.reshape(-1, config.q_size), layer["o"], layer.get("o_bias"))
        h = _rms_norm(x, layer["mlp_norm"], config.rms_norm_eps)
        gate, up = jnp.split(_linear(h, layer["gate_up"], layer.get("gate_up_bias")), 2, axis=-1)
        x = x + _linear(jax.nn.silu(gate) * up, layer["down"], layer.get("down_bias"))
    return x, tuple(new_pages)


def normalise(x: Array, norm: Array, config: ModelConfig) -> Array:
    """The final norm, `[rows, hidden_size]`."""
    return _rms_norm(x, norm, config.rms_norm_eps)


def logits(head: Array, hidden: Array) -> Array:
    """Scores over the vocabulary, float32 `[rows, vocab_size]`, of normalised hidden rows."""
    return _contract(hidden, head, jnp.float32)


def _contract(x: Array, weight: Array, out_dtype: Any) -> Array:
    full = x.dtype == jnp.float32
    return lax.dot_general(
        x,
        weight,
        (((1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST if full else None,
        preferred_element_type=out_dtype,
    )


def _linear(x: Array, weight: Array, bias: Array | None) -> Array:
    """`[tokens, in] x [out, in] -> [tokens, out]`."""
    y = _contract(x, weight, x.dtype)
    return y if bias is None else y + bias


def _rms_norm(x: Array, weight: Array, eps: float) -> Array:
    wide = x.astype(jnp.float32)
    scaled = wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return scaled.astype(x.dtype) * weight


def _rotate(x: Array, rotations: Rotations) -> Array:
    """Rotary embedding of `[tokens, heads, head_dim]`, halves paired as Hugging Face pairs them."""
    cos, sin = rotations
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
