"""Random numbers without state: a row's key follows from its seed, child and position alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

IMPLEMENTATION = "threefry2x32"


def split_seed(seed: int) -> np.ndarray:
    """The two uint32 words [2] (high, low) of a seed of 64 bits, signed or unsigned."""
    unsigned = seed % 2**64
    return np.array([unsigned >> 32, unsigned & 0xFFFFFFFF], dtype=np.uint32)


def row_keys(base: jax.Array, child: jax.Array, position: jax.Array) -> jax.Array:
    """Keys [R] = fold_in(fold_in(base, child), position).

    base: uint32 [R, 2] as `split_seed` gives them. child, position: int32 [R]; position is the
    absolute position of the token being sampled.
    """
    keys = jax.random.wrap_key_data(base, impl=IMPLEMENTATION)
    fold = jax.vmap(jax.random.fold_in)
    return fold(fold(keys, child), position)


def uniforms(keys: jax.Array, attempt: jax.Array | int) -> jax.Array:
    """Two independent float32 [R, 2] in [0, 1) per row, of 24 bits each; others per attempt.

    They are the two words of fold_in(key, attempt): one threefry block gives both.
    """
    folded = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, attempt)
    bits = jax.random.key_data(folded)
    return (bits >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)
