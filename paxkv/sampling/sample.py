"""The whole of sampling for one step: raw logits in, tokens and log-probabilities out."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from paxkv.sampling.beam_candidates import BeamCandidates, as_logprobs, beam_candidates
from paxkv.sampling.logit_edits import LogitEdits, edit_logits
from paxkv.sampling.logprobs import TopLogprobs, top_logprobs
from paxkv.sampling.sampler import SamplingRows, sample_tokens
from paxkv.sampling.token_counts import TokenCounts

CHUNK_ROWS = 16


class SampleResult(NamedTuple):
    """tokens, bad: as in `sampler.Sampled`. logprobs: of the tokens, zeros where not wanted.
    candidates: of beams."""

    tokens: jax.Array
    bad: jax.Array
    logprobs: TopLogprobs
    candidates: BeamCandidates


def sample(
    logits: jax.Array,
    rows: SamplingRows,
    edits: LogitEdits,
    counts: TokenCounts,
    num_logprobs: int,
    with_logprobs: jax.Array | bool,
    beams: jax.Array,
    num_candidates: int,
) -> SampleResult:
    """Edit, choose and score. logits: float32 [R, V]; num_logprobs: static; see the parts.

    beams: bool [R], rows of which the `num_candidates` (static) most likely tokens are wanted.

    More than 16 rows are worked through 16 at a time: their intermediate arrays then stay in the
    CPU's cache, and small enough for the allocator to reuse (64 rows of 49,152 take 2 to 3 times
    as long in one piece). `counts` are only read: add the tokens afterwards.
    """

    def some(part: tuple[jax.Array, SamplingRows, LogitEdits, jax.Array]) -> SampleResult:
        logits, rows, edits, beams = part
        edited = edit_logits(as_logprobs(logits, beams), edits, counts)
        tokens, bad = sample_tokens(edited, rows)
        scores = top_logprobs(logits, tokens, num_logprobs, with_logprobs)
        return SampleResult(tokens, bad, scores, beam_candidates(edited, beams, num_candidates))

    num_rows = logits.shape[0]
    if num_rows <= CHUNK_ROWS or num_rows % CHUNK_ROWS:
        return some((logits, rows, edits, beams))

    def split(array: Any) -> jax.Array:
        return jnp.asarray(array).reshape(-1, CHUNK_ROWS, *array.shape[1:])

    def join(array: jax.Array) -> jax.Array:
        return array.reshape(num_rows, *array.shape[2:])

    return jax.tree.map(join, lax.map(some, jax.tree.map(split, (logits, rows, edits, beams))))
