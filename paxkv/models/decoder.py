"""A decoder as pure functions over a paged cache: embed, run_layers, final_norm, logits.

Activations are columns, `[features, tokens]`, see `paxkv.models.linear`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from paxkv.models.attention import Attend, Step, WriteKV, attention
from paxkv.models.config import LayerKind, ModelConfig
from paxkv.models.linear import product
from paxkv.models.mlp import mlp
from paxkv.models.norm import rms_norm
from paxkv.models.rope import Rope, Rotations, rotations

Array = jax.Array
# Of each layer keys, values and, if they are quantized, the factors of both.
Pages = tuple[tuple[Array, ...], ...]


def embed(
    embedding: Array, step: Step, ropes: Sequence[Rope], config: ModelConfig
) -> tuple[Array, tuple[Rotations, ...]]:
    """Inputs `[hidden_size, num_tokens]`, and the rotations of their positions by each rope."""
    rotated = tuple(rotations(rope, step.positions) for rope in ropes)
    x = embedding[step.token_ids].T
    if config.embedding_scale != 1:
        x = x * jnp.asarray(config.embedding_scale, x.dtype)
    return x, rotated


def run_layers(
    layers: list[dict[str, Array]],
    pages: Pages,
    x: Array,
    rotations: Sequence[Rotations],
    step: Step,
    config: ModelConfig,
    kinds: Sequence[LayerKind],
    write: WriteKV,
    attend: Callable[[LayerKind], Attend],
) -> tuple[Array, Pages]:
    """Run `x` through consecutive layers: each writes keys and values, then attends over its pages.

    Args:
        layers: their arrays, as `paxkv.models.weights.describe(config)` lays them out.
        pages: theirs, (keys, values) or (keys, values, k_scale, v_scale), laid out as `write` and
            `attend` know them.
        x: `[hidden_size, num_tokens]`.
        rotations: by index of the rope.
        kinds: theirs; each is traced once, for its layers differ in their arrays alone.
        write: as `pallas_kernels.write_kv`.
        attend: for a kind, what attends as `pallas_kernels.ragged_paged_attention` does, the
            kind's window, the scale and the soft cap bound.

    Returns:
        Hidden states `[hidden_size, num_tokens]` and the pages.
    """

    @cache
    def traced(kind: LayerKind) -> Any:
        attend_kind = attend(kind)

        @jax.jit
        def run(layer: dict[str, Array], pages: tuple[Array, ...], x: Array) -> Any:
            h = rms_norm(x, layer["attn_norm"], config)
            rotated = rotations[kind.rope]
            h, pages = attention(layer, pages, h, rotated, step, config, write, attend_kind)
            if config.post_norms:
                h = rms_norm(h, layer["attn_post_norm"], config)
            x = x + h
            h = mlp(layer, rms_norm(x, layer["mlp_norm"], config), config)
            if config.post_norms:
                h = rms_norm(h, layer["mlp_post_norm"], config)
            return x + h, pages

        return run

    new_pages = []
    for layer, held, kind in zip(layers, pages, kinds, strict=True):
        x, written = traced(kind)(layer, held, x)
        new_pages.append(written)
    return x, tuple(new_pages)


def final_norm(x: Array, norm: Array, config: ModelConfig) -> Array:
    """The final norm, `[hidden_size, columns]`."""
    return rms_norm(x, norm, config)


def logits(head: Array, hidden: Array, softcap: float | None = None) -> Array:
    """Scores over the vocabulary, float32 `[columns, vocab_size]`, of normalized hidden states."""
    scores = product(head, hidden, jnp.float32)
    # Rows are few and the vocabulary is wide: XLA must not swap the operands here either.
    scores = lax.optimization_barrier(scores).T
    return scores if softcap is None else softcap * jnp.tanh(scores / softcap)
