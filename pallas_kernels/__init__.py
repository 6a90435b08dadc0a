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
from pallas_kernels.dispatch import Call, Choice, choose
from pallas_kernels.quantized.matmul import quantized_matmul
from pallas_kernels.quantized.weight import (
    QuantizedWeight,
    from_awq,
    from_gptq,
    quantize_weight,
)

__all__ = [
    "Call",
    "Choice",
    "QuantizedWeight",
    "cascade_attention",
    "choose",
    "copy_pages",
    "from_awq",
    "from_gptq",
    "merge_states",
    "quantize_weight",
    "quantized_matmul",
    "ragged_paged_attention",
    "write_kv",
]
