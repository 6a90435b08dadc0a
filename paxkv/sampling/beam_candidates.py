"""The tokens that each beam may go on with, for the host to choose from."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from paxkv.sampling.largest import in_blocks, largest, padded_to_blocks


class BeamCandidates(NamedTuple):
    """ids: int32 [R, k] and logprobs: float32 [R, k], most likely first; zeros where no row of
    the draw is a beam. Banned tokens have -inf."""

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
