"""A product with packed weights as one Triton kernel.

A program has a tile of outputs and tokens, and a share of the inputs. It reads packed numbers, a
block of inputs at a time, multiplies what they stand for less the zero of their group, which is
exact in any dtype, and scales the float32 sums of each block: no weight is ever rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.dispatch import current_target
from pallas_kernels.quantized.weight import QuantizedWeight
from pallas_kernels.triton.tuning import padded

Array = jax.Array

_BUSY = 264
_LEAST_BLOCKS = 4
_LEAST_BLOCK = 32


@dataclass(frozen=True)
class Config:
    """Tuning. outputs, tokens: of a program, powers of two of at least 16. splits: programs that
    share the inputs, their float32 sums added by a second pass.
    """

    outputs: int = 64
    tokens: int = 16
    splits: int = 1
    num_warps: int = 4
    num_stages: int = 4

    @classmethod
    def choose(cls, num_tokens: int, weight: QuantizedWeight) -> Config:
        """From static shapes alone, so that a row's result does not depend on the others'."""
        num_out, num_in = weight.shape
        tokens = min(64, max(16, padded(num_tokens)))
        programs = pl.cdiv(num_out, 64) * pl.cdiv(num_tokens, tokens)
        most = max(1, num_in // weight.block // _LEAST_BLOCKS)
        splits = max(1, min(-(-_BUSY // programs), most, 8))
        return cls(tokens=tokens, splits=1 << (splits.bit_length() - 1))


def check(x: Array, weight: QuantizedWeight) -> None:
    """Raise NotImplementedError, with a sentence, for what the kernel does not cover."""
    if weight.block < _LEAST_BLOCK:
        raise NotImplementedError(
            f"groups of {weight.group} inputs: a tensor core takes 16 at a time, so a group must "
            f"be a multiple of {_LEAST_BLOCK}"
        )
    if x.dtype not in (jnp.bfloat16, jnp.float16, jnp.float32):
        raise NotImplementedError(f"x is {x.dtype}: it must be bfloat16, float16 or float32")


def quantized_matmul(x: Array, weight: QuantizedWeight, config: Config | None = None) -> Array:
    """See `pallas_kernels.quantized_matmul`; the inputs are in the order of the packed numbers."""
    num_tokens = x.shape[0]
    num_out, _ = weight.shape
    config = config or Config.choose(num_tokens, weight)
    shape = (config.splits, num_tokens, num_out)
    out = pl.pallas_call(
        partial(_kernel, config=config, bits=weight.bits, block=weight.block),
        out_shape=jax.ShapeDtypeStruct(shape, x.dtype if config.splits == 1 else jnp.float32),
        grid=(
            pl.cdiv(num_out, config.outputs),
            pl.cdiv(num_tokens, config.tokens),
            config.splits,
        ),
        compiler_params=plgpu.CompilerParams(
            num_warps=config.num_warps, num_stages=config.num_stages
        ),
        interpret=current_target() == "cpu",
        name="quantized_matmul",
    )(x, weight.packed, weight.scale, weight.zero)
    return out[0] if config.splits == 1 else out.sum(0).astype(x.dtype)


def _kernel(
    x: Any, packed: Any, scale: Any, zero: Any, out: Any, *, config: Config, bits: int, block: int
) -> None:
    output = pl.program_id(0) * config.outputs + jnp.arange(config.outputs)
    token = pl.program_id(1) * config.tokens + jnp.arange(config.tokens)
    split = pl.program_id(2)
    num_tokens, num_in = x.shape
    here, mine = output < packed.shape[0], token < num_tokens
    by_row = (slice(None), None)
    blocks_in_group = num_in // scale.shape[1] // block
    run = block // 2 if bits == 4 else block
    lane = jnp.arange(run)

    def activations(first: Array) -> Array:
        """`[tokens, run]`"""
        where = (token[by_row], first + lane[None])
        return plgpu.load(
            x.at[where], mask=jnp.broadcast_to(mine[by_row], (config.tokens, run)), other=0.0
        )

    def step(number: Array, acc: Array) -> Array:
        bytes_at = (output[by_row], number * run + lane[None])
        inside = jnp.broadcast_to(here[by_row], (config.outputs, run))
        # [outputs, run]
        read = plgpu.load(packed.at[bytes_at], mask=inside, other=0).astype(jnp.int32)
        group = number // blocks_in_group
        none = plgpu.load(zero.at[output, group], mask=here, other=0).astype(jnp.int32)[by_row]
        factor = plgpu.load(scale.at[output, group], mask=here, other=0.0).astype(jnp.float32)
        first = number * block
        if bits == 8:
            return acc + _dot(activations(first), read - none) * factor[None]
        low = _dot(activations(first), (read & 15) - none)
        high = _dot(activations(first + run), (read >> 4) - none)
        return acc + (low + high) * factor[None]

    blocks = num_in // block
    share = pl.cdiv(blocks, config.splits)
    start = split * share
    acc = jnp.zeros((config.tokens, config.outputs), jnp.float32)
    acc = lax.fori_loop(start, jnp.minimum(start + share, blocks), step, acc)
    plgpu.store(
        out.at[split, token[by_row], output[None]],
        acc.astype(out.dtype),
        mask=mine[by_row] & here[None],
    )


def _dot(x: Array, numbers: Array) -> Array:
    """`[tokens, run] @ [outputs, run].T`; integers up to 255 are exact in bfloat16 too."""
    full = x.dtype == jnp.float32
    return jnp.dot(
        x,
        numbers.astype(x.dtype).T,
        precision=lax.Precision.HIGHEST if full else None,
        preferred_element_type=jnp.float32,
    )
