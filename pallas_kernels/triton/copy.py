"""Copies of whole pages, for copy-on-write."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.dispatch import current_target
from pallas_kernels.triton.tuning import padded

Array = jax.Array

# Elements that one program copies.
_PIECE = 4096


def copy_pages(pages: Array, source: Array, destination: Array, count: Array) -> Array:
    """See `pallas_kernels.copy_pages`. Pages may have any shape behind their first axis."""
    size = math.prod(pages.shape[1:])
    piece = min(_PIECE, padded(size))
    flat = pages.reshape(pages.shape[0], size)
    copied = pl.pallas_call(
        partial(_kernel, piece=piece),
        out_shape=jax.ShapeDtypeStruct(flat.shape, flat.dtype),
        grid=(pl.cdiv(size, piece), source.shape[0]),
        input_output_aliases={0: 0},
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=current_target() == "cpu",
        name="copy_pages",
    )(flat, source, destination, jnp.reshape(count, 1))
    return copied.reshape(pages.shape)


def _kernel(
    before: Any, source: Any, destination: Any, count: Any, pages: Any, *, piece: int
) -> None:
    del before  # Aliased to `pages`; read there, so that the interpreter sees one array.
    part, pair = pl.program_id(0), pl.program_id(1)
    at = part * piece + jnp.arange(piece)
    inside = (at < pages.shape[1]) & (pair < count[0])
    content = plgpu.load(pages.at[source[pair], at], mask=inside)
    plgpu.store(pages.at[destination[pair], at], content, mask=inside)
