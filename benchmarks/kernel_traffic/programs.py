"""Calls of the kernels at the sizes of real models, described but not allocated."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.api import cascade_attention, copy_pages, ragged_paged_attention, write_kv
from pallas_kernels.lab.lowering import Program
from pallas_kernels.mosaic import HEAD_DIMS
from pallas_kernels.quantized.matmul import quantized_matmul
from pallas_kernels.quantized.weight import QuantizedWeight

# head_dim: (heads, key heads)
HEADS = {64: (9, 3), 80: (32, 32), 96: (32, 8), 128: (32, 8), 256: (16, 8)}
_POOL_TOKENS = 1 << 18
_CONTEXT = 8192


def programs(backend: str, page_sizes: tuple[int, ...] = (16, 64)) -> Iterator[Program]:
    """Every kernel for each head size and page size, and for one-byte pages; of those, what the
    back end has a kernel for.
    """
    if backend == "mosaic":
        for head_dim, page_size in product(HEAD_DIMS, page_sizes):
            yield from _attention(backend, head_dim, page_size, jnp.bfloat16, few=2)
        return
    for head_dim in HEADS:
        for page_size in page_sizes:
            yield from _attention(backend, head_dim, page_size, jnp.bfloat16)
            yield _cascade(backend, head_dim, page_size)
            yield _write(backend, head_dim, page_size, jnp.bfloat16)
            yield _copy(backend, head_dim, page_size)
    for page_dtype in (jnp.int8, jnp.float8_e4m3fn):
        yield from _attention(backend, 128, 16, page_dtype)
        yield _write(backend, 128, 16, page_dtype)
    for bits, num_tokens in ((4, 16), (4, 64), (8, 16)):
        yield _matmul(backend, bits, num_tokens)


def _attention(
    backend: str, head_dim: int, page_size: int, page_dtype: Any, few: int = 0
) -> Iterator[Program]:
    """few: decode as many sequences too, whose keys are split however many heads they have."""
    size = f"D{head_dim} page{page_size} {jnp.dtype(page_dtype).name}"
    kinds = [("decode256", 256, 256), ("mixed", 2048, 8)]
    kinds += [("few", few, few)] if few else []
    for kind, num_tokens, num_seqs in kinds:

        def attend(**arrays: Any) -> Any:
            return ragged_paged_attention(**arrays, backend=backend)

        arguments = _arrays(num_tokens, num_seqs, head_dim, page_size, page_dtype)
        yield Program(f"{kind} {size}", attend, arguments)


def attention_program(backend: str, head_dim: int, page_size: int) -> Program:
    """A decode step of 256 sequences over bfloat16 pages."""
    return next(_attention(backend, head_dim, page_size, jnp.bfloat16))


def _cascade(backend: str, head_dim: int, page_size: int) -> Program:
    arguments = _arrays(64, 64, head_dim, page_size, jnp.bfloat16)
    arguments["shared_len"] = jax.ShapeDtypeStruct((), jnp.int32)

    def attend(**arrays: Any) -> Any:
        return cascade_attention(**arrays, backend=backend)

    return Program(f"cascade D{head_dim} page{page_size} bfloat16", attend, arguments)


def _write(backend: str, head_dim: int, page_size: int, page_dtype: Any) -> Program:
    arrays = _arrays(256, 256, head_dim, page_size, page_dtype)
    arguments = {name: x for name, x in arrays.items() if "pages" in name or "scale" in name}
    kv_heads = HEADS[head_dim][1]
    for name in ("k", "v"):
        arguments[name] = jax.ShapeDtypeStruct((256, kv_heads, head_dim), jnp.bfloat16)
    arguments["slot_mapping"] = jax.ShapeDtypeStruct((256,), jnp.int32)

    def write(**arrays: Any) -> Any:
        return write_kv(**arrays, backend=backend)

    name = f"write D{head_dim} page{page_size} {jnp.dtype(page_dtype).name}"
    return Program(name, write, arguments)


def _copy(backend: str, head_dim: int, page_size: int) -> Program:
    pages = _arrays(256, 256, head_dim, page_size, jnp.bfloat16)["k_pages"]
    index = jax.ShapeDtypeStruct((64,), jnp.int32)
    count = jax.ShapeDtypeStruct((), jnp.int32)

    def copy(**arrays: Any) -> Any:
        return copy_pages(**arrays, backend=backend)

    arguments = {"pages": pages, "source": index, "destination": index, "count": count}
    return Program(f"copy D{head_dim} page{page_size} bfloat16", copy, arguments)


def _matmul(backend: str, bits: int, num_tokens: int) -> Program:
    """The largest product of a layer of Llama 3 8B."""
    num_in, num_out, group = 4096, 28672, 128
    described = jax.ShapeDtypeStruct
    per_group = (num_out, num_in // group)

    def multiply(x: Any, packed: Any, scale: Any, zero: Any) -> Any:
        weight = QuantizedWeight(packed, scale, zero, bits=bits)
        return quantized_matmul(x, weight, backend=backend)

    arguments = {
        "x": described((num_tokens, num_in), jnp.bfloat16),
        "packed": described((num_out, num_in * bits // 8), jnp.uint8),
        "scale": described(per_group, jnp.float16),
        "zero": described(per_group, jnp.uint8),
    }
    return Program(f"matmul w{bits}a16 {num_tokens} tokens", multiply, arguments)


def _arrays(
    num_tokens: int, num_seqs: int, head_dim: int, page_size: int, page_dtype: Any
) -> dict[str, jax.ShapeDtypeStruct]:
    heads, kv_heads = HEADS[head_dim]
    num_pages = _POOL_TOKENS // page_size
    described = jax.ShapeDtypeStruct
    pages = described((num_pages, kv_heads, page_size, head_dim), page_dtype)
    arrays = {
        "q": described((num_tokens, heads, head_dim), jnp.bfloat16),
        "k_pages": pages,
        "v_pages": pages,
        "block_tables": described((num_seqs, _CONTEXT // page_size), jnp.int32),
        "kv_lens": described((num_seqs,), jnp.int32),
        "query_start": described((num_seqs + 1,), jnp.int32),
    }
    if jnp.dtype(page_dtype).itemsize == 1:
        factors = described((num_pages, page_size, kv_heads), jnp.float32)
        arrays |= {"k_scale": factors, "v_scale": factors}
    return arrays
