"""Root-mean-square norms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from paxkv.models.config import ModelConfig

Array = jax.Array


def rms_norm(x: Array, weight: Array, config: ModelConfig, axis: int = 0) -> Array:
    """Normalize `x` along an axis, the first or the last, and multiply by `weight` of its length.

    As transformers computes it: Llama multiplies in the type of `x`, Gemma by 1 + weight in
    float32.
    """
    wide = x.astype(jnp.float32)
    scaled = wide * lax.rsqrt(jnp.mean(wide * wide, axis=axis, keepdims=True) + config.rms_norm_eps)
    if axis == 0:
        weight = weight[:, None]
    if config.norm_unit_offset:
        return (scaled * (1 + weight.astype(jnp.float32))).astype(x.dtype)
    return scaled.astype(x.dtype) * weight
