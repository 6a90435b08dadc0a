"""The largest entries of wide rows, without sorting them.

XLA has no fast selection on CPUs: top_k(20) of 64 rows of 49,152 takes 9 ms, its sort far more.
The k largest entries lie in the k blocks with the largest maxima, which are k * 128 candidates.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

BLOCK = 128
FEW = 64


def in_blocks(rows: jax.Array) -> jax.Array:
    """[R, V] as [R, V / 128, 128]; V must be a multiple of 128."""
    return rows.reshape(rows.shape[0], -1, BLOCK)


def padded_to_blocks(rows: jax.Array) -> jax.Array:
    """[R, V] float, filled up with -inf to a multiple of 128 columns."""
    missing = -rows.shape[1] % BLOCK
    if not missing:
        return rows
    return jnp.pad(rows, ((0, 0), (0, missing)), constant_values=-jnp.inf)


def largest(rows: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Values and int32 columns [R, k] of the k largest entries, descending, lower column first.

    rows: float32 [R, V] without NaN. The same answer as `lax.top_k`.
    """
    blocks = in_blocks(padded_to_blocks(rows))
    if 2 * k * BLOCK >= rows.shape[1]:
        return lax.top_k(rows, k)
    _, chosen = lax.top_k(blocks.max(-1), k)
    # In column order, so that among equal values the lower column still comes first.
    chosen = jnp.sort(chosen, axis=-1)
    candidates = jnp.take_along_axis(blocks, chosen[:, :, None], axis=1)
    values, where = lax.top_k(candidates.reshape(rows.shape[0], -1), k)
    block = jnp.take_along_axis(chosen, where // BLOCK, axis=-1)
    return values, (block * BLOCK + where % BLOCK).astype(jnp.int32)


def _ordered(rows: jax.Array) -> jax.Array:
    """Integers in the order of the floats, one for one (both zeros apart)."""
    bits = lax.bitcast_convert_type(rows, jnp.int32)
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)


def _from_ordered(keys: jax.Array) -> jax.Array:
    bits = jnp.where(keys < 0, keys ^ jnp.int32(0x7FFFFFFF), keys)
    return lax.bitcast_convert_type(bits, jnp.float32)


def _bisected(rows: jax.Array, k: jax.Array, active: jax.Array) -> jax.Array:
    """A threshold [R] which exactly the k largest entries, and those equal to the last, reach."""

    def count(threshold: jax.Array) -> jax.Array:
        reached = in_blocks(rows >= threshold[:, None])
        return reached.sum(-1, dtype=jnp.int32).sum(-1, dtype=jnp.int32)

    State = tuple[jax.Array, jax.Array, jax.Array]

    def halve(state: State) -> State:
        low, high, done = state
        middle = (low & high) + ((low ^ high) >> 1)
        reached = count(_from_ordered(middle))
        enough = reached >= k
        low = jnp.where(enough & ~done, middle, low)
        high = jnp.where(~enough & ~done, middle, high)
        return low, high, done | (reached == k) | (high - low <= 1)

    shape = rows.shape[:1]
    low = jnp.full(shape, _ordered(jnp.float32(-jnp.inf)), jnp.int32)
    high = jnp.full(shape, _ordered(jnp.float32(jnp.inf)), jnp.int32)
    low, _, _ = lax.while_loop(lambda state: ~state[2].all(), halve, (low, high, ~active))
    return _from_ordered(low)


def kth_threshold(rows: jax.Array, k: jax.Array) -> jax.Array:
    """Thresholds [R] which the k largest entries reach, and every entry equal to the k-th.

    rows: float32 [R, V] without NaN, V a multiple of 128. k: int32 [R]; 0 is off and gives -inf.
    """
    active = k > 0
    few = min(FEW, rows.shape[1])

    def by_candidates(_: None) -> jax.Array:
        values, _columns = largest(rows, few)
        return jnp.take_along_axis(values, jnp.clip(k - 1, 0, few - 1)[:, None], axis=1)[:, 0]

    def by_bisection(_: None) -> jax.Array:
        return _bisected(rows, jnp.clip(k, 1, rows.shape[1]), active)

    def find(_: None) -> jax.Array:
        return lax.cond(k.max() <= few, by_candidates, by_bisection, None)

    def none(_: None) -> jax.Array:
        return jnp.full(rows.shape[:1], -jnp.inf, jnp.float32)

    threshold = lax.cond(active.any(), find, none, None)
    return jnp.where(active, threshold, -jnp.inf)
