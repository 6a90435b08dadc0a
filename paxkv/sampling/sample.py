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
    ends: jax.Array,
    beam_width: int,
) -> SampleResult:
    """Edit, choose and score. logits: float32 [R, V]; num_logprobs: static; see the parts.

    beams: bool [R], rows of beams, in searches of at most `beam_width` (static). ends: of those
    rows the tokens that end them, bits uint32 [R, ceil(V / 32)].

    More than 16 rows are worked through 16 at a time: their intermediate arrays then stay in the
    CPU's cache, and small enough for the allocator to reuse (64 rows of 49,152 take 2 to 3 times
    as long in one piece). `counts` are only read: add the tokens afterwards.
    """

    def some(
        part: tuple[jax.Array, SamplingRows, LogitEdits, jax.Array, jax.Array],
    ) -> SampleResult:
        logits, rows, edits, beams, ends = part
        edited = edit_logits(as_logprobs(logits, beams), edits, counts)
        tokens, bad = sample_tokens(edited, rows)
        scores = top_logprobs(logits, tokens, num_logprobs, with_logprobs)
        candidates = beam_candidates(edited, ends, beams, beam_width)
        return SampleResult(tokens, bad, scores, candidates)

    num_rows = logits.shape[0]
    if num_rows <= CHUNK_ROWS or num_rows % CHUNK_ROWS:
        return some((logits, rows, edits, beams, ends))

    def split(array: Any) -> jax.Array:
        return jnp.asarray(array).reshape(-1, CHUNK_ROWS, *array.shape[1:])

    def join(array: jax.Array) -> jax.Array:
        return array.reshape(num_rows, *array.shape[2:])

    parts = jax.tree.map(split, (logits, rows, edits, beams, ends))
    return jax.tree.map(join, lax.map(some, parts))
