"""The whole of sampling for one step: raw logits in, tokens and log-probabilities out."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from paxkv.sampling.logit_edits import LogitEdits, edit_logits
from paxkv.sampling.logprobs import TopLogprobs, top_logprobs
from paxkv.sampling.sampler import SamplingRows, sample_tokens
from paxkv.sampling.token_counts import TokenCounts

CHUNK_ROWS = 16


class SampleResult(NamedTuple):
    """tokens, bad: as in `sampler.Sampled`. logprobs: of the tokens, zeros where not wanted."""

    tokens: jax.Array
    bad: jax.Array
    logprobs: TopLogprobs


def sample(
    logits: jax.Array,
    rows: SamplingRows,
    edits: LogitEdits,
    counts: TokenCounts,
    num_logprobs: int,
    with_logprobs: jax.Array | bool,
) -> SampleResult:
    """Edit, choose and score. logits: float32 [R, V]; num_logprobs: static; see the parts.

    More than 16 rows are worked through 16 at a time: their intermediate arrays then stay in the
    CPU's cache, and small enough for the allocator to reuse (64 rows of 49,152 take 2 to 3 times
    as long in one piece). `counts` are only read: add the tokens afterwards.
    """

    def some(part: tuple[jax.Array, SamplingRows, LogitEdits]) -> SampleResult:
        logits, rows, edits = part
        tokens, bad = sample_tokens(edit_logits(logits, edits, counts), rows)
        scores = top_logprobs(logits, tokens, num_logprobs, with_logprobs)
        return SampleResult(tokens, bad, scores)

    num_rows = logits.shape[0]
    if num_rows <= CHUNK_ROWS or num_rows % CHUNK_ROWS:
        return some((logits, rows, edits))

    def split(array: Any) -> jax.Array:
        return jnp.asarray(array).reshape(-1, CHUNK_ROWS, *array.shape[1:])

    def join(array: jax.Array) -> jax.Array:
        return array.reshape(num_rows, *array.shape[2:])

    return jax.tree.map(join, lax.map(some, jax.tree.map(split, (logits, rows, edits))))
