"""The contract every back end fulfils: attention over pages, the write into them, and the merge
of partial results.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels import xla

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
    config: xla.Config | None = None,
    scheduled: xla.Schedule | None = None,
    backend: str = "xla",
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
        k_scale, v_scale: `[num_pages, page_size, num_kv_heads]` factors of quantised pages.
        return_lse: also return the log-sum-exp of each row's scores, float32
            `[num_tokens, num_heads]`.
        config: tuning of the back end, chosen from the static shapes by default.
        scheduled: the work list of the XLA path, if `xla.schedule` made it for all layers at once.
        backend: only `"xla"` so far.

    Returns:
        `[num_tokens, num_heads, head_dim]` in q's dtype; rows that see nothing are 0 with log-sum-
        exp -inf.

    Raises:
        ValueError: shapes that do not fit together, or an unknown back end.
    """
    q, k_pages, v_pages = jnp.asarray(q), jnp.asarray(k_pages), jnp.asarray(v_pages)
    block_tables, kv_lens = jnp.asarray(block_tables), jnp.asarray(kv_lens)
    query_start = jnp.asarray(query_start)
    _check(q, k_pages, v_pages, block_tables, kv_lens, query_start)
    if backend != "xla":
        raise ValueError(f"backend={backend!r} is unknown; available: 'xla'")
    return xla.ragged_paged_attention(
        q,
        k_pages,
        v_pages,
        block_tables,
        kv_lens,
        query_start,
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        window=window,
        softcap=softcap,
        sinks=sinks,
        k_scale=k_scale,
        v_scale=v_scale,
        return_lse=return_lse,
        config=config,
        scheduled=scheduled,
    )


def write_kv(
    k_pages: Array, v_pages: Array, k: Array, v: Array, slot_mapping: Array
) -> tuple[Array, Array]:
    """Write new keys and values, `[num_tokens, num_kv_heads, head_dim]`, at `slot = page *
    page_size + offset`.

    Padding tokens carry a slot of page 0, which belongs to nobody. Slots of one call must differ
    outside page 0.
    """
    return xla.write_kv(k_pages, v_pages, k, v, slot_mapping)


def copy_pages(pages: Array, source: Array, destination: Array, count: Array) -> Array:
    """Copy the first `count` pairs of pages; no page may be both a source and a destination."""
    return xla.copy_pages(pages, source, destination, count)


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
    top = jnp.max(lse, axis=0)
    safe = jnp.where(jnp.isneginf(top), 0.0, top)
    weights = jnp.exp(lse - safe)
    total = jnp.sum(weights, axis=0)
    shares = weights / jnp.where(total == 0, 1.0, total)
    seen = ~jnp.isneginf(lse)[..., None]
    merged = jnp.sum(shares[..., None] * jnp.where(seen, out.astype(jnp.float32), 0.0), axis=0)
    return merged.astype(out.dtype), safe + jnp.log(total)


def _check(
    q: Array,
    k_pages: Array,
    v_pages: Array,
    block_tables: Array,
    kv_lens: Array,
    query_start: Array,
) -> None:
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
    num_seqs = block_tables.shape[0]
    if kv_lens.shape != (num_seqs,) or query_start.shape != (num_seqs + 1,):
        raise ValueError(
            f"block_tables {block_tables.shape} needs kv_lens [{num_seqs}] and "
            f"query_start [{num_seqs + 1}], "
            f"got {kv_lens.shape} and {query_start.shape}"
        )
