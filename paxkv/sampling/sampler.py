"""Choosing one token per row on device."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from paxkv.sampling.keys import row_keys, uniforms
from paxkv.sampling.largest import BLOCK, in_blocks, kth_threshold, padded_to_blocks
from paxkv.sampling.params import SamplingParams, on_device


class SamplingRows(NamedTuple):
    """How each of R rows is drawn; all [R] except key. Zeros are a greedy row (padding).

    temperature: float32, 0 is greedy. top_k: int32, 0 is off. top_p: float32, read only where
    0 < top_p < 1. min_p: float32, 0 is off. key: uint32 [R, 2], `keys.split_seed`. child: int32.
    position: int32, absolute position of the token to be drawn.
    """

    temperature: jax.Array | np.ndarray
    top_k: jax.Array | np.ndarray
    top_p: jax.Array | np.ndarray
    min_p: jax.Array | np.ndarray
    key: jax.Array | np.ndarray
    child: jax.Array | np.ndarray
    position: jax.Array | np.ndarray


class RowSettings(NamedTuple):
    """The constant entries of a request's rows."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float


def row_settings(params: SamplingParams, vocab_size: int) -> RowSettings:
    """`params` normalised for the device: greedy is temperature 0, neutral filters are off."""
    if params.greedy:
        return RowSettings(0.0, 0, 1.0, 0.0)
    top_k = params.top_k if 0 < params.top_k < vocab_size else 0
    return RowSettings(
        on_device(params.temperature), top_k, on_device(params.top_p), on_device(params.min_p)
    )


def no_rows(rows: int) -> SamplingRows:
    """R greedy rows, to be filled in on the host."""
    return SamplingRows(
        temperature=np.zeros(rows, np.float32),
        top_k=np.zeros(rows, np.int32),
        top_p=np.ones(rows, np.float32),
        min_p=np.zeros(rows, np.float32),
        key=np.zeros((rows, 2), np.uint32),
        child=np.zeros(rows, np.int32),
        position=np.zeros(rows, np.int32),
    )


class Sampled(NamedTuple):
    """tokens: int32 [R], always valid ids. bad: bool [R], the row had a NaN, an infinite maximum
    or no allowed token; its token is 0 and its request must end with an error."""

    tokens: jax.Array
    bad: jax.Array


def _entry(blocks: jax.Array, block: jax.Array) -> jax.Array:
    """Block [R, 128] number `block` [R] of each row."""
    return jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]


def _most_likely(blocks: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Column and value [R] of the first largest entry."""
    block = jnp.argmax(blocks.max(-1), axis=-1).astype(jnp.int32)
    entries = _entry(blocks, block)
    column = jnp.argmax(entries, axis=-1).astype(jnp.int32)
    return block * BLOCK + column, entries.max(-1)


def _pick(weights: jax.Array, uniform: jax.Array) -> jax.Array:
    """Index [R] drawn with probability weights / sum; never one of weight zero.

    weights: float32 [R, N], non-negative, not all zero. uniform: float32 [R] in [0, 1).
    """
    sums = jnp.cumsum(weights, axis=-1)
    possible = weights > 0
    passed = possible & (sums > (uniform * sums[:, -1])[:, None])
    last = weights.shape[1] - 1 - jnp.argmax(possible[:, ::-1], axis=-1)
    return jnp.where(passed.any(-1), jnp.argmax(passed, axis=-1), last).astype(jnp.int32)


def _draw(blocks: jax.Array, top: jax.Array, rows: SamplingRows, bad: jax.Array) -> jax.Array:
    """Columns [R] drawn from softmax(blocks / temperature) under min_p, top_k, then top_p.

    top_p needs no threshold: a token drawn from the survivors stays if those more likely than it
    hold less than top_p of their mass, else the draw is repeated among the more likely ones. What
    is drawn so has exactly the distribution of the nucleus, and each attempt costs one pass.
    """
    temperature = jnp.asarray(rows.temperature)
    scale = (1.0 / jnp.where(temperature > 0, temperature, 1.0))[:, None, None]
    top = top[:, None, None]
    min_p = jnp.asarray(rows.min_p)[:, None, None]
    flat = blocks.reshape(blocks.shape[0], -1)
    floor = kth_threshold(flat, jnp.asarray(rows.top_k))[:, None, None]
    keys = row_keys(jnp.asarray(rows.key), jnp.asarray(rows.child), jnp.asarray(rows.position))

    def weigh(entries: jax.Array, above: jax.Array) -> jax.Array:
        weights = jnp.exp((entries - top) * scale)
        kept = (entries >= floor) & (entries > above[:, None, None]) & (weights >= min_p)
        return jnp.where(kept, weights, 0.0)

    top_p = jnp.asarray(rows.top_p)
    random = (temperature > 0) & ~bad
    nucleus = random & (top_p > 0) & (top_p < 1)

    State = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]

    def attempt(state: State) -> State:
        """Judge the token drawn last by what is above it, and draw another from there."""
        number, tokens, values, settled, wanted = state
        sums = weigh(blocks, values).sum(-1)
        mass = sums.sum(-1)
        wanted = jnp.where(number == 0, top_p * mass, wanted)
        # Negated, so that even a NaN ends the loop.
        settled = settled | ((number > 0) & ~(mass >= wanted))
        uniform = uniforms(keys, number)
        block = _pick(sums, uniform[:, 0])
        entries = _entry(blocks, block)
        column = _pick(weigh(entries[:, None], values)[:, 0], uniform[:, 1])
        value = jnp.take_along_axis(entries, column[:, None], axis=1)[:, 0]
        tokens = jnp.where(settled, tokens, block * BLOCK + column)
        values = jnp.where(settled, values, value)
        return number + 1, tokens, values, settled | ~nucleus, wanted

    zeros = jnp.zeros(blocks.shape[:1], jnp.float32)
    start = (jnp.int32(0), zeros.astype(jnp.int32), zeros - jnp.inf, ~random, zeros)
    return lax.while_loop(lambda state: ~state[3].all(), attempt, start)[1]


def sample_tokens(logits: jax.Array, rows: SamplingRows) -> Sampled:
    """One token per row of float32 logits [R, V], after `edit_logits`.

    Greedy rows take the first largest entry. The others are drawn with a key of their own, under
    min_p, then top_k, then top_p on what is left, renormalised (vLLM's order); entries equal to
    the last one kept are kept too. A token of probability zero is never drawn, and a row's token
    depends on nothing but that row.
    """
    # XLA's CPU maximum passes over NaN, so NaN is looked for by itself.
    blocks = in_blocks(padded_to_blocks(logits))
    has_nan = jnp.isnan(blocks).any(-1).any(-1)
    greedy, top = _most_likely(blocks)
    bad = has_nan | ~jnp.isfinite(top)
    random = jnp.asarray(rows.temperature) > 0
    drawn = lax.cond(
        random.any(), lambda: _draw(blocks, top, rows, bad), lambda: jnp.zeros_like(greedy)
    )
    tokens = jnp.where(random, drawn, greedy)
    return Sampled(jnp.where(bad, 0, tokens), bad)
