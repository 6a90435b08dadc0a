"""Matrix products with weights as checkpoints store them, `[out, in]`.

Activations are columns, `[features, tokens]`: XLA's CPU matmuls pack their right-hand side on
every call, and this makes it the small one.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels import QuantizedWeight, quantized_matmul

Array = jax.Array


def linear(weight: Array | QuantizedWeight, x: Array, bias: Array | None = None) -> Array:
    """`[out, in] @ [in, tokens] -> [out, tokens]`, with a dense or a quantized weight."""
    if isinstance(weight, QuantizedWeight):
        y = quantized_matmul(x.T, weight).T
    else:
        y = product(weight, x, x.dtype)
    return y if bias is None else y + bias[:, None]


def product(weight: Array, x: Array, out_dtype: Any) -> Array:
    """`weight @ x` with sums of at least `out_dtype`; float32 in full precision."""
    full = x.dtype == jnp.float32
    return jnp.matmul(
        weight,
        x,
        precision=lax.Precision.HIGHEST if full else None,
        preferred_element_type=out_dtype,
    )
