"""Log-probabilities of the model's own distribution."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from paxkv.sampling.top_k import in_blocks, largest, padded_to_blocks


class TopLogprobs(NamedTuple):
    """chosen: float32 [R], log-probability of each row's token. rank: int32 [R], from 1, counting
    equal entries by column. ids: int32 [R, k] and values: float32 [R, k], most likely first."""

    chosen: jax.Array
    rank: jax.Array
    ids: jax.Array
    values: jax.Array


def top_logprobs(
    logits: jax.Array, tokens: jax.Array, k: int, wanted: jax.Array | bool = True
) -> TopLogprobs:
    """Of raw float32 logits [R, V]: before temperature, penalties, filters, bias and bans.

    tokens: int32 [R]. k: static, at most V. wanted: bool scalar; False skips the work and
    returns zeros.
    """
    rows = logits.shape[0]

    def measure() -> TopLogprobs:
        blocks = in_blocks(padded_to_blocks(logits))
        top = blocks.max(-1).max(-1)
        total = jnp.exp(blocks - top[:, None, None]).sum(-1).sum(-1)
        normaliser = top + jnp.log(total)
        value = jnp.take_along_axis(logits, tokens[:, None], axis=1)
        columns = in_blocks(jnp.arange(blocks.shape[1] * blocks.shape[2])[None])
        mine = value[:, :, None]
        before = (blocks > mine) | ((blocks == mine) & (columns < tokens[:, None, None]))
        rank = before.sum(-1, dtype=jnp.int32).sum(-1, dtype=jnp.int32) + 1
        values, ids = largest(logits, k)
        return TopLogprobs(value[:, 0] - normaliser, rank, ids, values - normaliser[:, None])

    def skip() -> TopLogprobs:
        return TopLogprobs(
            jnp.zeros(rows, jnp.float32),
            jnp.zeros(rows, jnp.int32),
            jnp.zeros((rows, k), jnp.int32),
            jnp.zeros((rows, k), jnp.float32),
        )

    return lax.cond(wanted, measure, skip)


class BeamCandidates(NamedTuple):
    """ids: int32 [R, k] and logprobs: float32 [R, k], most likely first; zeros where no row of
    the sample is a beam. Banned tokens have -inf."""

    ids: jax.Array
    logprobs: jax.Array


def as_logprobs(logits: jax.Array, beams: jax.Array) -> jax.Array:
    """float32 [R, V] with the rows of beams (bool [R]) normalised, the others untouched.

    transformers edits the log-probabilities of beams where it edits the logits of other
    sequences, and does not normalise them again.
    """

    def normalise() -> jax.Array:
        blocks = in_blocks(padded_to_blocks(logits))
        top = blocks.max(-1).max(-1)
        total = jnp.exp(blocks - top[:, None, None]).sum(-1).sum(-1)
        logprobs = logits - top[:, None] - jnp.log(total)[:, None]
        return jnp.where(beams[:, None], logprobs, logits)

    return lax.cond(beams.any(), normalise, lambda: logits)


def beam_candidates(logprobs: jax.Array, beams: jax.Array, k: int) -> BeamCandidates:
    """The `k` largest of `logprobs` [R, V], after the edits; zeros if no row is a beam."""
    rows = logprobs.shape[0]

    def find() -> BeamCandidates:
        values, ids = largest(logprobs, k)
        return BeamCandidates(ids, values)

    def none() -> BeamCandidates:
        return BeamCandidates(jnp.zeros((rows, k), jnp.int32), jnp.zeros((rows, k), jnp.float32))

    return lax.cond(beams.any(), find, none)
