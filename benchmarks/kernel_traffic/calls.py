"""Calls of the kernels with real arguments, small enough to run their PTX on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks.kernel_traffic.ideals import (
    Ideal,
    attention_ideal,
    cascade_ideal,
    copy_ideal,
    matmul_ideal,
    mosaic_ideal,
    write_ideal,
)
from benchmarks.kernel_traffic.launches import Launch
from benchmarks.kernel_traffic.programs import HEADS
from pallas_kernels.api import cascade_attention, copy_pages, ragged_paged_attention, write_kv
from pallas_kernels.quantized.matmul import quantized_matmul
from pallas_kernels.quantized.weight import QuantizedWeight

# An index that nobody may follow: outside every pool here, in 32-bit arithmetic too.
NOWHERE = 20011
# Head sizes that are counted.
COUNTED = (64, 128)
# (new, cached) tokens of sequences.
_FEW = [(1, 4099), (1, 2500), (1, 1), (0, 0), (1, 3001)]
_CHUNKS = [(300, 300), (100, 1000), (0, 0), (257, 513)]
PAGES = ("k_pages", "v_pages", "k_scale", "v_scale")


@dataclass(frozen=True)
class CountedCall:
    """A call whose traffic is counted.

    ideal: from the arguments and the launches. pages: names of the operands that are pages.
    """

    name: str
    function: Callable[..., Any]
    arguments: dict[str, np.ndarray]
    ideal: Callable[[dict[str, np.ndarray], Sequence[Launch]], Ideal]
    pages: tuple[str, ...] = PAGES


def calls(backend: str, head_dim: int, page_size: int) -> Iterator[CountedCall]:
    """Decoding (v1, v2, with a window, over one-byte pages), prefill, writing and copying."""
    size = f"D{head_dim} page{page_size}"
    attend = partial(attention_call, backend, head_dim, page_size)
    lengths = _one_each(head_dim, page_size)
    yield attend(f"decode v1 {size}", lengths)
    yield attend(f"decode v2 {size}", _FEW)
    yield attend(f"decode v1 window 256 {size}", lengths, window=256)
    yield attend(f"prefill {size}", _CHUNKS)
    yield _cascade(backend, head_dim, page_size)
    yield attend(f"decode v1 int8 {size}", lengths, page_dtype="int8")
    for page_dtype in ("bfloat16", "int8"):
        yield _write(backend, head_dim, page_size, page_dtype)
    yield _copy(backend, head_dim, page_size)


def mosaic_calls(head_dim: int, page_size: int) -> Iterator[CountedCall]:
    """Decoding (v1, v2) and prefill by Mosaic GPU's kernel."""
    for name, lengths in (
        ("decode v1", _one_each(head_dim, page_size)),
        ("decode v2", _FEW),
        ("prefill", _CHUNKS),
    ):
        size = f"D{head_dim} page{page_size}"
        yield attention_call("mosaic", head_dim, page_size, f"mosaic {name} {size}", lengths)


def _one_each(head_dim: int, page_size: int) -> list[tuple[int, int]]:
    """Of a decode step with enough programs without splitting."""
    random = np.random.default_rng(head_dim + page_size)
    many = -(-264 // HEADS[head_dim][1])
    return [(1, int(n)) for n in random.integers(500, 900, many)]


def attention_call(
    backend: str,
    head_dim: int,
    page_size: int,
    name: str,
    lengths: list[tuple[int, int]],
    window: int | None = None,
    page_dtype: str = "bfloat16",
    keeps_old: bool = False,
) -> CountedCall:
    """Attention of sequences of `(new, cached)` tokens over a pool without a page to spare.

    keeps_old: the block tables still name the pages that a window has left.
    """
    heads, kv_heads = HEADS[head_dim]
    needed = [-(-cached // page_size) for _, cached in lengths]
    num_pages = sum(needed) + 1
    order = 1 + np.random.default_rng(0).permutation(num_pages - 1)
    tables = np.full((len(lengths), max(needed) + 3), NOWHERE, np.int32)
    taken = 0
    for row, pages in enumerate(needed):
        tables[row, :pages] = order[taken : taken + pages]
        if window is not None and not keeps_old:
            new, cached = lengths[row]
            tables[row, : max(0, cached - new - window + 1) // page_size] = NOWHERE
        taken += pages
    shape = (num_pages, kv_heads, page_size, head_dim)
    counts = [new for new, _ in lengths]
    arguments = {
        "q": np.zeros((sum(counts), heads, head_dim), jnp.bfloat16),
        "k_pages": np.zeros(shape, page_dtype),
        "v_pages": np.zeros(shape, page_dtype),
        "block_tables": tables,
        "kv_lens": np.array([cached for _, cached in lengths], np.int32),
        "query_start": np.cumsum([0, *counts]).astype(np.int32),
    }
    if np.dtype(page_dtype).itemsize == 1:
        for factor in ("k_scale", "v_scale"):
            arguments[factor] = np.zeros((num_pages, page_size, kv_heads), np.float32)

    def attend(**arrays: Any) -> Any:
        return ragged_paged_attention(**arrays, window=window, backend=backend)

    ideal = mosaic_ideal if backend == "mosaic" else attention_ideal
    return CountedCall(name, attend, arguments, partial(ideal, window=window))


def _cascade(backend: str, head_dim: int, page_size: int) -> CountedCall:
    shared = 1024
    lengths = [(1, 1025 + 40 * row) for row in range(20)]
    call = attention_call(backend, head_dim, page_size, "", lengths)
    arguments = dict(call.arguments)
    tables = arguments["block_tables"].copy()
    # Nobody reads the prefix through another row than the first.
    tables[1:, : shared // page_size] = NOWHERE
    arguments |= {"block_tables": tables, "shared_len": np.array(shared, np.int32)}

    def attend(**arrays: Any) -> Any:
        return cascade_attention(**arrays, backend=backend)

    return CountedCall(f"cascade D{head_dim} page{page_size}", attend, arguments, cascade_ideal)


def _write(backend: str, head_dim: int, page_size: int, page_dtype: str) -> CountedCall:
    heads = HEADS[head_dim][1]
    shape = (512 // page_size + 1, heads, page_size, head_dim)
    new = np.zeros((256, heads, head_dim), jnp.bfloat16)
    slots = page_size + np.random.default_rng(0).permutation(512)[:256].astype(np.int32)
    # The last 16 are padding.
    slots[240:] = 0
    arguments = {
        "k_pages": np.zeros(shape, page_dtype),
        "v_pages": np.zeros(shape, page_dtype),
        "k": new,
        "v": new.copy(),
        "slot_mapping": slots,
    }
    if np.dtype(page_dtype).itemsize == 1:
        for factor in ("k_scale", "v_scale"):
            arguments[factor] = np.zeros((shape[0], page_size, heads), np.float32)

    def write(**arrays: Any) -> Any:
        return write_kv(**arrays, backend=backend)

    name = f"write {page_dtype} D{head_dim} page{page_size}"
    return CountedCall(name, write, arguments, lambda given, _: write_ideal(given))


def matmul_calls(backend: str) -> Iterator[CountedCall]:
    """Products with packed weights, of a decode step's few tokens."""
    for bits in (4, 8):
        yield _matmul(backend, bits)


def _matmul(backend: str, bits: int) -> CountedCall:
    num_tokens, num_out, num_in, group = 16, 1024, 2048, 128
    per_group = (num_out, num_in // group)
    arguments = {
        "x": np.zeros((num_tokens, num_in), jnp.bfloat16),
        "packed": np.zeros((num_out, num_in * bits // 8), np.uint8),
        "scale": np.zeros(per_group, np.float16),
        "zero": np.zeros(per_group, np.uint8),
    }

    def multiply(x: Any, packed: Any, scale: Any, zero: Any) -> Any:
        weight = QuantizedWeight(packed, scale, zero, bits=bits)
        return quantized_matmul(x, weight, backend=backend)

    return CountedCall(f"matmul w{bits}a16", multiply, arguments, matmul_ideal, ("packed",))


def _copy(backend: str, head_dim: int, page_size: int) -> CountedCall:
    shape = (129, HEADS[head_dim][1], page_size, head_dim)
    order = 1 + np.random.default_rng(0).permutation(128).astype(np.int32)
    arguments = {
        "pages": np.zeros(shape, jnp.bfloat16),
        "source": np.where(np.arange(64) < 40, order[:64], NOWHERE).astype(np.int32),
        "destination": np.where(np.arange(64) < 40, order[64:], NOWHERE).astype(np.int32),
        "count": np.array(40, np.int32),
    }

    def copy(**arrays: Any) -> Any:
        return copy_pages(**arrays, backend=backend)

    name = f"copy D{head_dim} page{page_size}"
    return CountedCall(name, copy, arguments, lambda given, _: copy_ideal(given), ("pages",))
