"""The decoder of the Llama family as pure functions over a paged cache: embed, run_layers,
final_norm, logits.

Activations are columns, `[features, tokens]`: every product is `weight @ x` with the weight as
checkpoints store it, `[out, in]`. XLA's CPU matmuls pack their right-hand side on every call, and
this makes it the small one.
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
# Of each layer keys, values and, if they are quantized, the factors of both.
Pages = tuple[tuple[Array, ...], ...]
Rotations = tuple[Array, Array]

# Up to as many, XLA must not turn a product whose result is transposed around: it would pack the
# weight instead, which pays with more of them.
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


class Rope(NamedTuple):
    """Inverse frequencies, head_dim / 2 of them, and attention factor, from `rope_parameters`."""

    inv_freq: tuple[float, ...]
    factor: float


def embed(embedding: Array, step: Step, rope: Rope) -> tuple[Array, Rotations]:
    """Inputs `[hidden_size, num_tokens]`, and the rotations (cos, sin) of their positions."""
    angle = step.positions[:, None].astype(jnp.float32) * jnp.array(rope.inv_freq, jnp.float32)
    rotations = (jnp.cos(angle) * rope.factor)[:, None], (jnp.sin(angle) * rope.factor)[:, None]
    return embedding[step.token_ids].T, rotations


def run_layers(
    layers: list[dict[str, Array]],
    pages: Pages,
    x: Array,
    rotations: Rotations,
    step: Step,
    config: ModelConfig,
    write: Callable[..., tuple[Array, ...]] = write_kv,
    attention: Callable[..., Any] = ragged_paged_attention,
) -> tuple[Array, Pages]:
    """Run `x` through consecutive layers: each writes keys and values, then attends over its pages.

    Args:
        layers: their arrays, as `paxkv.models.weights.describe(config)` lays them out.
        pages: theirs, (keys, values) or (keys, values, k_scale, v_scale), laid out as `write` and
            `attention` know them.
        x: `[hidden_size, num_tokens]`.
        write, attention: anything with the contract of `pallas_kernels.write_kv` and
            `pallas_kernels.ragged_paged_attention`.

    Returns:
        Hidden states `[hidden_size, num_tokens]` and the pages.
    """

    @jax.jit  # One trace for all layers: they differ in their arrays alone.
    def run(layer: dict[str, Array], pages: tuple[Array, ...], x: Array) -> Any:
        h = _rms_norm(x, layer["attn_norm"], config.rms_norm_eps)
        qkv = _linear(layer["qkv"], h, layer.get("qkv_bias"))
        if x.shape[1] <= FEW_TOKENS:
            qkv = lax.optimization_barrier(qkv)
        qkv = qkv.T.reshape(-1, config.num_heads + 2 * config.num_kv_heads, config.head_dim)
        q, k, v = jnp.split(qkv, (config.num_heads, config.num_heads + config.num_kv_heads), axis=1)
        q, k = _rotate(q, rotations), _rotate(k, rotations)
        pages = write(*pages[:2], k, v, step.slot_mapping, **_factors(pages))
        out = attention(
            q,
            *pages[:2],
            step.block_tables,
            step.kv_lens,
            step.query_start,
            window=config.sliding_window,
            **_factors(pages),
        )
        x = x + _linear(layer["o"], out.reshape(-1, config.q_size).T, layer.get("o_bias"))
        h = _rms_norm(x, layer["mlp_norm"], config.rms_norm_eps)
        gate, up = jnp.split(_linear(layer["gate_up"], h, layer.get("gate_up_bias")), 2)
        x = x + _linear(layer["down"], jax.nn.silu(gate) * up, layer.get("down_bias"))
        return x, pages

    new_pages = []
    for layer, held in zip(layers, pages, strict=True):
        x, written = run(layer, held, x)
        new_pages.append(written)
    return x, tuple(new_pages)


def _factors(pages: tuple[Array, ...]) -> dict[str, Array]:
    return dict(zip(("k_scale", "v_scale"), pages[2:]))


def final_norm(x: Array, norm: Array, config: ModelConfig) -> Array:
    """The final norm, `[hidden_size, columns]`."""
    return _rms_norm(x, norm, config.rms_norm_eps)


def logits(head: Array, hidden: Array) -> Array:
    """Scores over the vocabulary, float32 `[columns, vocab_size]`, of normalised hidden states."""
    scores = _product(head, hidden, jnp.float32)
    # Rows are few, and the vocabulary is wide: XLA must not turn this product around either.
    return lax.optimization_barrier(scores).T


def _product(weight: Array, x: Array, out_dtype: Any) -> Array:
    full = x.dtype == jnp.float32
    return jnp.matmul(
        weight,
        x,
        precision=lax.Precision.HIGHEST if full else None,
        preferred_element_type=out_dtype,
    )


def _linear(weight: Array, x: Array, bias: Array | None) -> Array:
    """`[out, in] @ [in, tokens] -> [out, tokens]`."""
    y = _product(weight, x, x.dtype)
    return y if bias is None else y + bias[:, None]


def _rms_norm(x: Array, weight: Array, eps: float) -> Array:
    wide = x.astype(jnp.float32)
    scaled = wide * lax.rsqrt(jnp.mean(wide * wide, axis=0, keepdims=True) + eps)
    return scaled.astype(x.dtype) * weight[:, None]


def _rotate(x: Array, rotations: Rotations) -> Array:
    """Rotary embedding of `[tokens, heads, head_dim]`, halves paired as Hugging Face pairs them."""
    cos, sin = rotations
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
