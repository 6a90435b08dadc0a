"""Ragged paged attention for JAX: one contract, an XLA reference, and GPU kernels behind it.

Depends on jax alone. Pages are `[num_pages, num_kv_heads, page_size, head_dim]` for keys and
values.
"""

from pallas_kernels.api import (
    cascade_attention,
    copy_pages,
    merge_states,
    ragged_paged_attention,
    write_kv,
)
from pallas_kernels.choice import Call, Choice, choose

__all__ = [
    "Call",
    "Choice",
    "cascade_attention",
    "choose",
    "copy_pages",
    "merge_states",
    "ragged_paged_attention",
    "write_kv",
]
