"""Edits of logits before sampling: bias, penalties, bans."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from paxkv.fields import Field, neutral_rows
from paxkv.sampling.token_counts import TokenCounts

Array = jax.Array | np.ndarray
ALL_ALLOWED = np.uint32(0xFFFFFFFF)


class LogitEdits(NamedTuple):
    """The edits of R rows. `no_edits` gives the neutral ones, which cost nothing to apply.

    presence, frequency, repetition: float32 [R], neutral 0, 0, 1. slots: int32 [R], each row's
    slot in TokenCounts, 0 without penalties.
    bias_ids: int32 [R, B], bias_values: float32 [R, B]; pad with id 0 and bias 0.
    allowed: uint32 [R, ceil(V / 32)], bit v % 32 of word v // 32 says whether token v may be
    chosen; neutral is all ones. A row with no allowed token is reported bad by the sampler.
    """

    presence: Annotated[Array, Field(np.float32)]
    frequency: Annotated[Array, Field(np.float32)]
    repetition: Annotated[Array, Field(np.float32, neutral=1.0)]
    slots: Annotated[Array, Field(np.int32)]
    bias_ids: Annotated[Array, Field(np.int32, shape=("biases",))]
    bias_values: Annotated[Array, Field(np.float32, shape=("biases",))]
    allowed: Annotated[Array, Field(np.uint32, neutral=ALL_ALLOWED, shape=("words",))]


def no_edits(rows: int, vocab_size: int, num_biases: int = 1) -> LogitEdits:
    return neutral_rows(LogitEdits, rows, biases=num_biases, words=-(-vocab_size // 32))


def _add_bias(logits: jax.Array, edits: LogitEdits) -> jax.Array:
    row = jnp.arange(logits.shape[0])[:, None]
    return logits.at[row, edits.bias_ids].add(edits.bias_values, mode="promise_in_bounds")


def _penalize(logits: jax.Array, edits: LogitEdits, counts: TokenCounts) -> jax.Array:
    """Keskar et al. 2019 (CTRL), section 4.1, over prompt and output; then OpenAI's two
    penalties over the output."""
    output = counts.output[edits.slots]
    seen = counts.prompt[edits.slots] | (output > 0)
    repetition = jnp.asarray(edits.repetition)[:, None]
    scaled = jnp.where(logits > 0, logits / repetition, logits * repetition)
    logits = jnp.where(seen, scaled, logits)
    logits -= jnp.asarray(edits.frequency)[:, None] * output.astype(jnp.float32)
    return logits - jnp.where(output > 0, jnp.asarray(edits.presence)[:, None], 0.0)


def _ban(logits: jax.Array, edits: LogitEdits) -> jax.Array:
    return jnp.where(unpacked(edits.allowed, logits.shape[1]), logits, -jnp.inf)


def unpacked(words: jax.Array | np.ndarray, width: int) -> jax.Array:
    """Bits uint32 [R, ceil(width / 32)] as bool [R, width]."""
    bits = jnp.arange(32, dtype=jnp.uint32)
    apart = (jnp.asarray(words)[:, :, None] >> bits) & 1
    return apart.reshape(words.shape[0], -1)[:, :width] != 0


def edit_logits(logits: jax.Array, edits: LogitEdits, counts: TokenCounts) -> jax.Array:
    """float32 [R, V] with bias added, then penalties, then bans applied (vLLM's order).

    Steps that no row asks for are skipped at run time; a row's result never depends on others.
    """
    penalties = jnp.any((edits.presence != 0) | (edits.frequency != 0) | (edits.repetition != 1))
    bias = jnp.any(edits.bias_values != 0)
    bans = jnp.any(edits.allowed != ALL_ALLOWED)

    def edited(logits: jax.Array) -> jax.Array:
        logits = lax.cond(bias, lambda x: _add_bias(x, edits), lambda x: x, logits)
        logits = lax.cond(penalties, lambda x: _penalize(x, edits, counts), lambda x: x, logits)
        return _ban(logits, edits)

    return lax.cond(penalties | bias | bans, edited, lambda x: x, logits)
