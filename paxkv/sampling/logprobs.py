"""Log-probabilities of the model's own distribution."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from paxkv.sampling.logit_edits import unpacked
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
    """Log-probabilities of raw float32 logits [R, V], before temperature, filters and all edits.

    tokens: int32 [R]. k: static, at most V. wanted: bool scalar; False skips the work and
    returns zeros.
    """
    rows = logits.shape[0]

    def measure() -> TopLogprobs:
        blocks = in_blocks(padded_to_blocks(logits))
        row_max, log_total = _log_total(blocks)
        normalizer = row_max + log_total
        value = jnp.take_along_axis(logits, tokens[:, None], axis=1)
        columns = in_blocks(jnp.arange(blocks.shape[1] * blocks.shape[2])[None])
        mine = value[:, :, None]
        before = (blocks > mine) | ((blocks == mine) & (columns < tokens[:, None, None]))
        rank = before.sum(-1, dtype=jnp.int32).sum(-1, dtype=jnp.int32) + 1
        values, ids = largest(logits, k)
        return TopLogprobs(value[:, 0] - normalizer, rank, ids, values - normalizer[:, None])

    def skip() -> TopLogprobs:
        return TopLogprobs(
            jnp.zeros(rows, jnp.float32),
            jnp.zeros(rows, jnp.int32),
            jnp.zeros((rows, k), jnp.int32),
            jnp.zeros((rows, k), jnp.float32),
        )

    return lax.cond(wanted, measure, skip)


def _log_total(blocks: jax.Array) -> tuple[jax.Array, jax.Array]:
    """float32 [R] each, of logits in blocks: the largest, and the log of the sum of exponentials
    relative to it."""
    row_max = blocks.max(-1).max(-1)
    return row_max, jnp.log(jnp.exp(blocks - row_max[:, None, None]).sum(-1).sum(-1))


class BeamCandidates(NamedTuple):
    """ids: int32 [R, k] and logprobs: float32 [R, k]: the most likely tokens that end a beam, then
    the most likely that do not, each best first; zeros where no row is a beam. Banned tokens and
    padding of either part have -inf."""

    ids: jax.Array
    logprobs: jax.Array


def as_logprobs(logits: jax.Array, beams: jax.Array) -> jax.Array:
    """float32 [R, V] with the rows of beams (bool [R]) normalized, the others untouched.

    transformers edits the log-probabilities of beams where it edits the logits of other
    sequences, and does not normalize them again.
    """

    def normalize() -> jax.Array:
        row_max, log_total = _log_total(in_blocks(padded_to_blocks(logits)))
        logprobs = logits - row_max[:, None] - log_total[:, None]
        return jnp.where(beams[:, None], logprobs, logits)

    return lax.cond(beams.any(), normalize, lambda: logits)


def beam_candidates(
    logprobs: jax.Array, ends: jax.Array, beams: jax.Array, width: int
) -> BeamCandidates:
    """Candidates among `logprobs` [R, V], after the edits, for a search of up to `width` beams.

    ends: uint32 [R, ceil(V / 32)], bits of the tokens that end a beam. At most `width` of them can
    be among the best candidates of all beams, and twice as many others: those that survive, and
    as many that a stop string may end. Zeros if no row is a beam.
    """
    num_rows, vocab_size = logprobs.shape
    num_ends, num_others = min(width, vocab_size), min(2 * width, vocab_size)

    def find() -> BeamCandidates:
        ending = unpacked(ends, vocab_size)
        end_values, end_ids = largest(jnp.where(ending, logprobs, -jnp.inf), num_ends)
        values, ids = largest(jnp.where(ending, -jnp.inf, logprobs), num_others)
        return BeamCandidates(
            jnp.concatenate((end_ids, ids), 1), jnp.concatenate((end_values, values), 1)
        )

    def none() -> BeamCandidates:
        shape = (num_rows, num_ends + num_others)
        return BeamCandidates(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32))

    return lax.cond(beams.any(), find, none)
