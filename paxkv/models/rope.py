"""Rotary embedding: tables of inverse frequencies, and the rotation."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from paxkv.models.config import ModelConfig, RopeScaling

Array = jax.Array
# Cosines and sines of the positions of a step, `[num_tokens, 1, head_dim / 2]` float32.
Rotations = tuple[Array, Array]

_YARN_BETAS = (32.0, 1.0)


class Rope(NamedTuple):
    """Inverse frequencies, head_dim / 2 of them, and attention factor, from `rope_parameters`."""

    inv_freq: tuple[float, ...]
    factor: float


def rope_tables(config: ModelConfig, max_model_len: int | None = None) -> tuple[Rope, ...]:
    """The table of each of `config.ropes`."""
    found = []
    for index in range(len(config.ropes)):
        inv_freq, factor = rope_parameters(config, max_model_len, index)
        found.append(Rope(tuple(inv_freq.tolist()), factor))
    return tuple(found)


def rotations(rope: Rope, positions: Array) -> Rotations:
    """Cosines and sines at `positions [num_tokens]`."""
    angle = positions[:, None].astype(jnp.float32) * jnp.array(rope.inv_freq, jnp.float32)
    return (jnp.cos(angle) * rope.factor)[:, None], (jnp.sin(angle) * rope.factor)[:, None]


def rotate(x: Array, rotations: Rotations) -> Array:
    """Rotary embedding of `[tokens, heads, head_dim]`, halves paired as Hugging Face pairs them."""
    cos, sin = rotations
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


def _powers(base: float, dim: int) -> np.ndarray:
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    return np.float32(base) ** exponents


def _llama3(inv_freq: np.ndarray, scaling: RopeScaling, length: int) -> np.ndarray:
    """Llama 3.1: long wavelengths are divided by the factor, short ones kept, others blended."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    assert low is not None
    assert high is not None
    turns = length * inv_freq / np.float32(2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return ((1 - kept) * inv_freq / scaling.factor + kept * inv_freq).astype(np.float32)


def _yarn(scaling: RopeScaling, base: float, dim: int, length: int) -> np.ndarray:
    """YaRN (arXiv 2309.00071), "NTK-by-parts": interpolate slow dimensions, keep fast ones."""

    def dimension(rotations: float) -> float:
        return dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = dimension(scaling.beta_fast or _YARN_BETAS[0])
    high = dimension(scaling.beta_slow or _YARN_BETAS[1])
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = high - low or 0.001
    interpolated = np.clip((np.arange(dim // 2, dtype=np.float32) - low) / span, 0, 1)
    powers = _powers(base, dim)
    inv_freq = interpolated / (scaling.factor * powers) + (1 - interpolated) / powers
    return inv_freq.astype(np.float32)


def _yarn_attention_factor(scaling: RopeScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def mscale(weight: float) -> float:
        if scaling.factor <= 1:
            return 1.0
        return 0.1 * weight * math.log(scaling.factor) + 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return mscale(scaling.mscale) / mscale(scaling.mscale_all_dim)
    return mscale(1.0)


def rope_parameters(
    config: ModelConfig, max_model_len: int | None = None, index: int = 0
) -> tuple[np.ndarray, float]:
    """Inverse frequencies [head_dim / 2] float32 and the factor on cos and sin, of one rope.

    Equal to transformers' rope utilities, but for "dynamic": its base is fixed by `max_model_len`
    (tokens; the model's own length by default), because a cached key must not depend on how long
    its sequence became later.
    """
    rope, dim = config.ropes[index], config.head_dim
    scaling, base = rope.rope_scaling, rope.rope_theta
    if scaling is None:
        return 1 / _powers(base, dim), 1.0
    original = scaling.original_max_position_embeddings or config.max_position_embeddings
    if scaling.rope_type == "yarn":
        return _yarn(scaling, base, dim, original), _yarn_attention_factor(scaling)
    if scaling.rope_type == "dynamic":
        trained = config.max_position_embeddings
        length = max(max_model_len or trained, trained)
        stretch = scaling.factor * length / trained - (scaling.factor - 1)
        base = base * stretch ** (dim / (dim - 2))
    inv_freq = 1 / _powers(base, dim)
    if scaling.rope_type == "llama3":
        return _llama3(inv_freq, scaling, original), 1.0
    if scaling.rope_type == "linear":
        inv_freq = inv_freq / np.float32(scaling.factor)
    if scaling.freq_factors is not None:
        inv_freq = inv_freq / np.asarray(scaling.freq_factors, np.float32)
    return inv_freq, 1.0
