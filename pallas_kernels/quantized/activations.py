"""Keys and values of one byte, with a factor per token and key head."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array


def largest(dtype: Any) -> float:
    """The largest magnitude that int8 or an 8-bit float holds."""
    dtype = jnp.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        return float(jnp.iinfo(dtype).max)
    return float(jnp.finfo(dtype).max)


def quantize(x: Array, dtype: Any) -> tuple[Array, Array]:
    """Quantize rows `[..., head_dim]`, symmetrically, to `dtype`.

    Returns:
        Values `[..., head_dim]` and float32 factors `[...]`, `values * factor` being close to `x`.
        A row of zeros gets the factor 0.
    """
    wide = x.astype(jnp.float32)
    most = largest(dtype)
    factor = jnp.max(jnp.abs(wide), axis=-1) / most
    scaled = wide / jnp.where(factor == 0, 1.0, factor)[..., None]
    if jnp.issubdtype(jnp.dtype(dtype), jnp.integer):
        # Not `round`, which the Triton lowering lacks.
        scaled = jnp.floor(scaled + 0.5)
    # A quotient rounded up must not become infinity or wrap.
    return jnp.clip(scaled, -most, most).astype(dtype), factor
