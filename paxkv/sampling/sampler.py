"""The sampler: one token per row, on the device."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from paxkv.fields import Field, fields_of, neutral_rows
from paxkv.sampling.logit_edits import LogitEdits, edit_logits
from paxkv.sampling.logprobs import (
    BeamCandidates,
    TopLogprobs,
    as_logprobs,
    beam_candidates,
    top_logprobs,
)
from paxkv.sampling.prng import row_keys, uniforms
from paxkv.sampling.sampling_params import SamplingParams, on_device
from paxkv.sampling.token_counts import TokenCounts
from paxkv.sampling.top_k import BLOCK, in_blocks, kth_threshold, padded_to_blocks

Array = jax.Array | np.ndarray


class SamplingRows(NamedTuple):
    """Sampling settings of R rows; all [R] except key. Neutral values are a greedy row (padding).

    temperature: float32, 0 is greedy. top_k: int32, 0 is off. top_p: float32, read only where
    0 < top_p < 1. min_p, top_n_sigma: float32, 0 is off. key: uint32 [R, 2], `prng.split_seed`.
    child: int32. position: int32, absolute position of the token to be sampled.
    """

    temperature: Annotated[Array, Field(np.float32)]
    top_k: Annotated[Array, Field(np.int32)]
    top_p: Annotated[Array, Field(np.float32, neutral=1.0)]
    min_p: Annotated[Array, Field(np.float32)]
    top_n_sigma: Annotated[Array, Field(np.float32)]
    key: Annotated[Array, Field(np.uint32, shape=(2,))]
    child: Annotated[Array, Field(np.int32)]
    position: Annotated[Array, Field(np.int32)]


class RowSettings(NamedTuple):
    """Entries of `SamplingRows` that a request never changes; by default neutral."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    top_n_sigma: float = 0.0


def row_settings(params: SamplingParams, vocab_size: int) -> RowSettings:
    """`params` normalized for the device: greedy is temperature 0, neutral filters are off."""
    if params.greedy:
        return RowSettings()
    top_k = params.top_k if 0 < params.top_k < vocab_size else 0
    return RowSettings(
        on_device(params.temperature),
        top_k,
        on_device(params.top_p),
        on_device(params.min_p),
        on_device(max(0.0, params.top_n_sigma or 0.0)),
    )


def row_words(settings: RowSettings) -> np.ndarray:
    """The bits of each of the settings as an int32, in the types of `SamplingRows`."""
    fields = fields_of(SamplingRows)
    values = settings._asdict().items()
    words = [np.array([value], fields[name].dtype).view(np.int32) for name, value in values]
    return np.concatenate(words)


def no_rows(rows: int) -> SamplingRows:
    """R greedy rows, to be filled in on the host."""
    return neutral_rows(SamplingRows, rows)


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
    """Index [R] sampled with probability weights / sum; never one of weight zero.

    weights: float32 [R, N], non-negative, not all zero. uniform: float32 [R] in [0, 1).
    """
    sums = jnp.cumsum(weights, axis=-1)
    possible = weights > 0
    passed = possible & (sums > (uniform * sums[:, -1])[:, None])
    last = weights.shape[1] - 1 - jnp.argmax(possible[:, ::-1], axis=-1)
    return jnp.where(passed.any(-1), jnp.argmax(passed, axis=-1), last).astype(jnp.int32)


def _sigma_threshold(blocks: jax.Array, top: jax.Array, sigmas: jax.Array) -> jax.Array:
    """Logits [R] so many standard deviations below the largest, `top` [R]; -inf where that is 0.

    Entries of -inf, which are banned or fill the blocks up, do not count.
    """

    def find() -> jax.Array:
        counted = blocks > -jnp.inf
        number = counted.sum(-1).sum(-1).astype(jnp.float32)
        below = jnp.where(counted, blocks - top[:, None, None], 0.0)
        mean = below.sum(-1).sum(-1) / number
        squares = jnp.where(counted, (below - mean[:, None, None]) ** 2, 0.0)
        return top - sigmas * jnp.sqrt(squares.sum(-1).sum(-1) / number)

    wanted = sigmas > 0
    found = lax.cond(wanted.any(), find, lambda: jnp.full_like(top, -jnp.inf))
    return jnp.where(wanted, found, -jnp.inf)


def _sample(blocks: jax.Array, top: jax.Array, rows: SamplingRows, bad: jax.Array) -> jax.Array:
    """Sample columns [R] from softmax(blocks / temperature) under the filters, top_p last.

    top_p needs no threshold. A token sampled from the survivors is kept if the more likely ones
    hold less than top_p of the mass; otherwise sampling is repeated among the more likely ones.
    The result has exactly the distribution of the nucleus, and each attempt costs one pass.
    """
    temperature = jnp.asarray(rows.temperature)
    scale = (1.0 / jnp.where(temperature > 0, temperature, 1.0))[:, None, None]
    min_p = jnp.asarray(rows.min_p)[:, None, None]
    flat = blocks.reshape(blocks.shape[0], -1)
    sigma_floor = _sigma_threshold(blocks, top, jnp.asarray(rows.top_n_sigma))
    floor = jnp.maximum(kth_threshold(flat, jnp.asarray(rows.top_k)), sigma_floor)[:, None, None]
    keys = row_keys(jnp.asarray(rows.key), jnp.asarray(rows.child), jnp.asarray(rows.position))

    def weigh(entries: jax.Array, above: jax.Array) -> jax.Array:
        weights = jnp.exp((entries - top[:, None, None]) * scale)
        kept = (entries >= floor) & (entries > above[:, None, None]) & (weights >= min_p)
        return jnp.where(kept, weights, 0.0)

    top_p = jnp.asarray(rows.top_p)
    random = (temperature > 0) & ~bad
    nucleus = random & (top_p > 0) & (top_p < 1)

    State = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]

    def attempt(state: State) -> State:
        """Test the last token by the mass above it, and sample another from there."""
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
    """Sample one token per row of float32 logits [R, V], after `edit_logits`.

    Greedy rows take the first largest entry. The others are sampled with a key of their own, under
    top_n_sigma, min_p, top_k, then top_p on what is left, renormalized (vLLM's order); entries
    equal to the last one kept are kept too. A token of probability zero is never sampled, and a
    row's token depends on nothing but that row.
    """
    # XLA's CPU maximum passes over NaN, so NaN is looked for by itself.
    blocks = in_blocks(padded_to_blocks(logits))
    has_nan = jnp.isnan(blocks).any(-1).any(-1)
    greedy, top = _most_likely(blocks)
    bad = has_nan | ~jnp.isfinite(top)
    random = jnp.asarray(rows.temperature) > 0
    sampled = lax.cond(
        random.any(), lambda: _sample(blocks, top, rows, bad), lambda: jnp.zeros_like(greedy)
    )
    tokens = jnp.where(random, sampled, greedy)
    return Sampled(jnp.where(bad, 0, tokens), bad)


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
