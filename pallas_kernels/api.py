"""The public functions: attention over pages, the write into them, and the merge of partial
results.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.contract import AttentionInputs, AttentionOptions, Backend, call_of
from pallas_kernels.dispatch import BACK_ENDS, choose, module_of

Array = jax.Array


def ragged_paged_attention(
    q: Array,
    k_pages: Array,
    v_pages: Array,
    block_tables: Array,
    kv_lens: Array,
    query_start: Array,
    *,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    return_lse: bool = False,
    config: Any = None,
    work_lists: Any = None,
    backend: str = "auto",
) -> Array | tuple[Array, Array]:
    """Causal attention of ragged queries over paged keys and values.

    PagedAttention: Kwon et al. 2023, section 4. Sequence `s` owns the query tokens
    `query_start[s]:query_start[s + 1]`; they are its *last* positions, so the token `i` of its `n`
    queries stands at position `kv_lens[s] - n + i` and sees all positions up to its own.

    Args:
        q: `[num_tokens, num_heads, head_dim]`; tokens from `query_start[-1]` on are padding.
        k_pages, v_pages: `[num_pages, num_kv_heads, page_size, head_dim]`, `num_heads %
            num_kv_heads == 0`.
        block_tables: `[num_seqs, max_pages]` int32 page indices; entries past a sequence's length
            are never read.
        kv_lens: `[num_seqs]` int32 tokens cached per sequence, this step's included; 0 for an
            unused row.
        query_start: `[num_seqs + 1]` int32 running sum of query lengths, starting at 0.
        scale: factor on the scores, `head_dim ** -0.5` by default.
        window: a token sees at most this many positions, its own included.
        softcap: scores become `softcap * tanh(score / softcap)`.
        sinks: `[num_heads]` logits of a virtual token without a value, in every softmax.
        k_scale, v_scale: `[num_pages, page_size, num_kv_heads]` float32 factors of quantized pages
            (int8 or 8-bit floats); both or neither.
        return_lse: also return the log-sum-exp of each row's scores, float32
            `[num_tokens, num_heads]`.
        config: the back end's own `Config`, chosen from the static shapes by default.
        work_lists: what the back end's `prepare` made of this step for these options; without it
            the back end prepares by itself.
        backend: `"xla"`, `"triton"`, `"mosaic"`, or `"auto"`: the first that covers the call. On
            the CPU, `"triton"` and `"mosaic"` run in Pallas' interpreters, which are for tests.

    Returns:
        `[num_tokens, num_heads, head_dim]` in q's dtype; rows that see nothing are 0 with log-sum-
        exp -inf.

    Raises:
        ValueError: shapes that do not fit together, or an unknown back end.
        NotImplementedError: the back end asked for by name does not cover the call; says why.
    """
    arrays = (q, k_pages, v_pages, block_tables, kv_lens, query_start)
    given = AttentionInputs(*arrays, k_scale, v_scale, sinks, work_lists)
    inputs = jax.tree.map(jnp.asarray, given)
    _check(inputs)
    options = AttentionOptions(
        scale=inputs.q.shape[-1] ** -0.5 if scale is None else scale,
        window=window,
        softcap=softcap,
        return_lse=return_lse,
        config=config,
    )
    return _chosen(backend, inputs, options).attention(inputs, options)


def cascade_attention(
    q: Array,
    k_pages: Array,
    v_pages: Array,
    block_tables: Array,
    kv_lens: Array,
    query_start: Array,
    shared_len: Array | int,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    return_lse: bool = False,
    config: Any = None,
    backend: str = "auto",
) -> Array | tuple[Array, Array]:
    """`ragged_paged_attention` of sequences that start with the same pages, which are read once.

    Args:
        shared_len: int32 scalar, may be data: so many first positions stand in the same pages in
            the table of every sequence with a query. A multiple of the page size that is at most
            the position of the first query token of each; 0 if they share nothing.

    All else is as in `ragged_paged_attention`. The same prefix length gives the same bits whatever
    else is in the batch; another one differs by rounding. `"xla"` and `"mosaic"` read the prefix
    for each sequence anew.
    """
    arrays = (q, k_pages, v_pages, block_tables, kv_lens, query_start)
    inputs = jax.tree.map(jnp.asarray, AttentionInputs(*arrays, k_scale, v_scale, sinks))
    _check(inputs)
    options = AttentionOptions(
        scale=inputs.q.shape[-1] ** -0.5 if scale is None else scale,
        softcap=softcap,
        return_lse=return_lse,
        config=config,
    )
    chosen = _chosen(backend, inputs, options)
    cascade = getattr(chosen, "cascade_attention", None)
    if cascade is None:
        return chosen.attention(inputs, options)
    return cascade(inputs, jnp.asarray(shared_len, jnp.int32), options)


def write_kv(
    k_pages: Array,
    v_pages: Array,
    k: Array,
    v: Array,
    slot_mapping: Array,
    *,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    backend: str = "xla",
) -> tuple[Array, ...]:
    """Write new keys and values, `[num_tokens, num_kv_heads, head_dim]`, at `slot = page *
    page_size + offset`.

    Padding tokens carry a slot of page 0, which belongs to nobody. Slots of one call must differ
    outside page 0.

    Args:
        k_scale, v_scale: `[num_pages, page_size, num_kv_heads]` factors of quantized pages; given,
            what is written is quantized, a factor per token and key head.
        backend: `"triton"`, or `"xla"`, which `"mosaic"` is too: it has no kernel for this.

    Returns:
        The pages, and the factors where given.

    Raises ValueError if shapes do not fit together.
    """
    _check_factors(v_pages, k_scale, v_scale)
    _, num_kv_heads, _, head_dim = v_pages.shape
    want = (slot_mapping.shape[0], num_kv_heads, head_dim)
    for name, new in (("k", k), ("v", v)):
        if new.shape != want:
            raise ValueError(
                f"{name} must be [num_tokens, num_kv_heads, head_dim] = {want} for slot_mapping "
                f"{slot_mapping.shape} and pages {v_pages.shape}, got {new.shape}"
            )
    return _module(backend).write_kv(k_pages, v_pages, k, v, slot_mapping, k_scale, v_scale)


def copy_pages(
    pages: Array, source: Array, destination: Array, count: Array, *, backend: str = "xla"
) -> Array:
    """Copy the first `count` pairs of pages; no page may be both a source and a destination."""
    return _module(backend).copy_pages(pages, source, destination, count)


def _module(backend: str) -> Backend:
    """For anything but attention, where "auto" has nothing to go by."""
    if backend not in BACK_ENDS:
        raise ValueError(f"backend={backend!r} must be 'xla', 'triton' or 'mosaic'")
    return module_of(backend)


def merge_states(out: Array, lse: Array) -> tuple[Array, Array]:
    """Merge attention over disjoint parts of the keys (FlashAttention, Dao et al. 2022, section
    3.1).

    Args:
        out: `[parts, ..., head_dim]` normalised partial outputs.
        lse: `[parts, ...]` float32 log-sum-exp of the scores behind each; -inf for a part that saw
            nothing.

    Returns:
        The output and log-sum-exp over all parts: 0 and -inf where every part saw nothing.
    """
    row_max = jnp.max(lse, axis=0)
    safe = jnp.where(jnp.isneginf(row_max), 0.0, row_max)
    weights = jnp.exp(lse - safe)
    total = jnp.sum(weights, axis=0)
    shares = weights / jnp.where(total == 0, 1.0, total)
    seen = ~jnp.isneginf(lse)[..., None]
    merged = jnp.sum(shares[..., None] * jnp.where(seen, out.astype(jnp.float32), 0.0), axis=0)
    return merged.astype(out.dtype), safe + jnp.log(total)


def _chosen(backend: str, inputs: AttentionInputs, options: AttentionOptions) -> Backend:
    return module_of(choose(backend, call_of(inputs, options)).backend)


def _check(inputs: AttentionInputs) -> None:
    """Raise ValueError for shapes that do not fit together."""
    q, k_pages, v_pages = inputs.q, inputs.k_pages, inputs.v_pages
    if q.ndim != 3:
        raise ValueError(f"q must be [num_tokens, num_heads, head_dim], got {q.shape}")
    if k_pages.ndim != 4 or k_pages.shape != v_pages.shape:
        raise ValueError(
            "k_pages and v_pages must both be [num_pages, num_kv_heads, page_size, head_dim], "
            f"got {k_pages.shape} and {v_pages.shape}"
        )
    if q.shape[2] != k_pages.shape[3] or q.shape[1] % k_pages.shape[1]:
        raise ValueError(
            f"q {q.shape} does not fit pages {k_pages.shape}: head_dim must be equal "
            "and num_heads a multiple of num_kv_heads"
        )
    num_seqs = inputs.block_tables.shape[0]
    if inputs.kv_lens.shape != (num_seqs,) or inputs.query_start.shape != (num_seqs + 1,):
        raise ValueError(
            f"block_tables {inputs.block_tables.shape} needs kv_lens [{num_seqs}] and "
            f"query_start [{num_seqs + 1}], "
            f"got {inputs.kv_lens.shape} and {inputs.query_start.shape}"
        )
    if inputs.sinks is not None and inputs.sinks.shape != (q.shape[1],):
        raise ValueError(f"sinks must be [num_heads] = [{q.shape[1]}], got {inputs.sinks.shape}")
    _check_factors(v_pages, inputs.k_scale, inputs.v_scale)


def _check_factors(v_pages: Array, k_scale: Array | None, v_scale: Array | None) -> None:
    if (k_scale is None) != (v_scale is None):
        raise ValueError("k_scale and v_scale must both be given, or neither")
    num_pages, num_kv_heads, page_size, _ = v_pages.shape
    want = (num_pages, page_size, num_kv_heads)
    for name, factors in (("k_scale", k_scale), ("v_scale", v_scale)):
        if factors is not None and factors.shape != want:
            raise ValueError(
                f"{name} must be [num_pages, page_size, num_kv_heads] = {want}, got {factors.shape}"
            )
