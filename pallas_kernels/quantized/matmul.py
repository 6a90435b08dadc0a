"""Activations times a weight of 4 or 8 bits, which is read as it is stored."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.dispatch import current_target
from pallas_kernels.quantized.weight import QuantizedWeight

Array = jax.Array


def quantized_matmul(
    x: Array, weight: QuantizedWeight, *, backend: str = "auto", config: Any = None
) -> Array:
    """`x @ weight.T`: `[num_tokens, num_in]` to `[num_tokens, num_out]`, in x's dtype.

    Sums are float32. A decode step is bound by the bytes of its weights; the Triton kernel reads a
    quarter (or half) of bfloat16's. The XLA path makes the whole matrix first: it is the
    reference, and the way on other platforms and for long prompts.

    Args:
        backend: "auto", "triton" or "xla".
        config: `pallas_kernels.triton.matmul.Config`, by default chosen from the shapes.

    Raises:
        ValueError: sizes that do not fit, or an unknown back end.
        NotImplementedError: the named back end does not cover the call.
    """
    if x.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(
            f"x {list(x.shape)} and weight {list(weight.shape)} do not fit: "
            f"x must be [num_tokens, {weight.shape[1]}]"
        )
    if backend not in ("auto", "triton", "xla"):
        raise ValueError(f"backend={backend!r} is unknown; available: 'auto', 'triton', 'xla'")
    if backend != "xla" and (backend == "triton" or current_target() == "cuda"):
        try:
            from pallas_kernels.triton import matmul as triton

            triton.check(x, weight)
        except (ImportError, NotImplementedError):
            if backend == "triton":
                raise
        else:
            if weight.order is not None:
                x = x[:, weight.order]
            return triton.quantized_matmul(x, weight, config)
    return _by_xla(x, weight)


def _by_xla(x: Array, weight: QuantizedWeight) -> Array:
    """Dequantized to x's dtype as a matrix product takes it; float32 stays float32."""
    full = x.dtype == jnp.float32
    return jnp.matmul(
        x,
        weight.dequantize(x.dtype).T,
        precision=lax.Precision.HIGHEST if full else None,
        preferred_element_type=jnp.float32,
    ).astype(x.dtype)
