"""New keys and values into their pages: one program per token, quantising on the way if asked."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.contract import STANDARD, KVLayout
from pallas_kernels.dispatch import current_target
from pallas_kernels.quantized.activations import quantize
from pallas_kernels.triton.tuning import padded

Array = jax.Array


class Written(NamedTuple):
    """The arrays written in place; factors are None where the pages are not quantized."""

    k_pages: Any
    v_pages: Any
    k_scale: Any
    v_scale: Any


def write_kv(
    k_pages: Array,
    v_pages: Array,
    k: Array,
    v: Array,
    slot_mapping: Array,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    *,
    layout: KVLayout = STANDARD,
) -> tuple[Array, ...]:
    """See `pallas_kernels.write_kv`. Nothing is written to page 0."""
    assert layout == STANDARD
    pages = Written(k_pages, v_pages, k_scale, v_scale)
    (written,) = pl.pallas_call(
        _kernel,
        out_shape=(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), pages),),
        grid=(k.shape[0],),
        input_output_aliases={i: i for i in range(len(jax.tree.leaves(pages)))},
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=current_target() == "cpu",
        name="write_kv",
    )(pages, slot_mapping, k, v)
    return tuple(x for x in written if x is not None)


def _kernel(before: Any, slots: Any, k: Any, v: Any, pages: Written) -> None:
    del before  # Aliased to `pages`.
    token = pl.program_id(0)
    _, num_kv_heads, page_size, head_dim = pages.v_pages.shape
    page, offset = slots[token] // page_size, slots[token] % page_size
    head, lane = jnp.arange(padded(num_kv_heads)), jnp.arange(padded(head_dim))
    # Padding carries a slot of page 0.
    written = (head < num_kv_heads) & (page > 0)
    inside = written[:, None] & (lane < head_dim)[None]
    for new, there, factors in (
        (k, pages.k_pages, pages.k_scale),
        (v, pages.v_pages, pages.v_scale),
    ):
        # [num_kv_heads, head_dim]
        row = plgpu.load(new.at[token, head[:, None], lane[None]], mask=inside, other=0.0)
        if factors is not None:
            row, factor = quantize(row, there.dtype)
            plgpu.store(factors.at[page, offset, head], factor, mask=written)
        plgpu.store(
            there.at[page, head[:, None], offset, lane[None]], row.astype(there.dtype), mask=inside
        )
