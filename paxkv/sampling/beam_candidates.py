"""The tokens that each beam may go on with, for the host to choose from."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from paxkv.sampling.largest import in_blocks, largest, padded_to_blocks
from paxkv.sampling.logit_edits import unpacked


class BeamCandidates(NamedTuple):
    """ids: int32 [R, k] and logprobs: float32 [R, k]: the most likely tokens that end a beam, then
    the most likely that do not, each best first; zeros where no row of the draw is a beam. Banned
    tokens have -inf, and so has what fills either part up."""

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


def beam_candidates(
    logprobs: jax.Array, ends: jax.Array, beams: jax.Array, width: int
) -> BeamCandidates:
    """Of `logprobs` [R, V], after the edits, what a search of up to `width` beams can need.

    ends: uint32 [R, ceil(V / 32)], bits of the tokens that end a beam. At most `width` of them can
    be among the best candidates of all beams, and twice as many others: those that go on, and as
    many that a stop string may end. Zeros if no row is a beam.
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
