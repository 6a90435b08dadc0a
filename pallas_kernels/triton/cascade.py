"""Cascade attention: a prefix that all sequences share is read once for all of them.

Hydragen (Juravsky et al. 2024, section 3.1): attention over the prefix, where the queries of all
sequences are rows of one matrix product, and attention over what follows, joined by their
log-sum-exps.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp

from pallas_kernels.api import merge_states
from pallas_kernels.contract import AttentionInputs, AttentionOptions, call_of
from pallas_kernels.tiles import Tiles, splits_for
from pallas_kernels.triton.attention import Keys, Score, attend, attend_from
from pallas_kernels.triton.tuning import BUSY, Config

Array = jax.Array


def cascade_attention(
    inputs: AttentionInputs, shared_len: Array, options: AttentionOptions
) -> Array | tuple[Array, Array]:
    """See `pallas_kernels.cascade_attention`."""
    call = call_of(inputs, options)
    config = options.config or Config.choose(call)
    q, query_start = inputs.q, inputs.query_start
    keys, score = Keys.of(inputs), Score.of(options)
    num_tokens = q.shape[0]

    per_tile = config.prefill.rows // call.group
    first = jnp.arange(0, num_tokens, per_tile, dtype=jnp.int32)
    # Any sequence with a query knows the pages of the prefix.
    someone = jnp.argmax(query_start[1:] > query_start[:-1]).astype(jnp.int32)
    index = (
        jnp.full_like(first, someone),
        first,
        jnp.minimum(num_tokens - first, per_tile),
        jnp.full_like(first, shared_len - 1),
    )
    prefix = Tiles(jnp.stack(index, axis=1), jnp.zeros(1, jnp.int32), per_tile, causal=False)
    programs = first.shape[0] * call.num_kv_heads
    tile = replace(config.prefill, splits=splits_for(programs, call, BUSY))
    out, lse = attend(q, keys, prefix, score, tile, jnp.float32)
    padding = jnp.arange(num_tokens) >= query_start[-1]
    lse = jnp.where(padding[:, None], -jnp.inf, lse)

    own_out, own_lse = attend_from(
        q,
        keys,
        inputs.kv_lens,
        query_start,
        score,
        config,
        inputs.sinks,
        first_key=shared_len,
        dtype=jnp.float32,
    )
    out, lse = merge_states(jnp.stack((out, own_out)), jnp.stack((lse, own_lse)))
    out = out.astype(q.dtype)
    return (out, lse) if options.return_lse else out
