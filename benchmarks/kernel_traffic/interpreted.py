"""Every kernel in Pallas' interpreter against numpy, the paged ones at one head and page size.

Memory that nobody may touch is guarded: pages at both ends of the pool are poison, and so is every
cell of a block table behind a sequence's pages; it names a page far outside, which the interpreter
takes for the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.kernel_traffic.programs import HEADS
from pallas_kernels.api import (
    cascade_attention,
    copy_pages,
    ragged_paged_attention,
    write_kv,
)
from pallas_kernels.contract import AttentionInputs, call_of
from pallas_kernels.dispatch import module_of
from pallas_kernels.lab.battery import Case, Problem, build, compare
from pallas_kernels.quantized.matmul import quantized_matmul
from pallas_kernels.quantized.weight import pack

_FAR = 1 << 20
# Sums over 256 dimensions are rounded more often than the battery's.
_SLACK = 2.0
_STATIC = ("scale", "window", "softcap", "return_lse")


@dataclass(frozen=True)
class Check:
    """kernel: its name in the ladder. run: raises AssertionError if it is wrong."""

    kernel: str
    run: Callable[[], None]


def checks(backend: str, head_dim: int, page_size: int) -> Iterator[Check]:
    """All kernels."""
    heads, kv_heads = HEADS[head_dim]
    # The group as in the model, with fewer key heads: the interpreter is slow.
    kv = min(kv_heads, 2)
    sizes: dict[str, Any] = {
        "head_dim": head_dim,
        "page_size": page_size,
        "heads": heads // kv_heads * kv,
        "kv_heads": kv,
    }
    edges = (1, page_size - 1, page_size, page_size + 1, 2 * page_size + 1, 300)
    decode = Case("decode", ((0, 0), *((1, n) for n in edges)), padding=1, **sizes)
    lengths = ((1, 9), (page_size + 1, 2 * page_size), (0, 0), (3, 40), (1, 300))
    mixed = Case("prefill", lengths, padding=3, window=page_size + 3, sinks=True, **sizes)
    for name, splits in (("decode v1", 1), ("decode v2", 4)):
        config = _split(backend, decode, splits)
        yield Check(name, partial(attention, _attend(backend, config), decode))
    if (head_dim, page_size) == (128, 16):
        one_byte = replace(decode, page_dtype="int8")
        config = _split(backend, one_byte, 1)
        yield Check("decode v1 int8", partial(attention, _attend(backend, config), one_byte))
    yield Check("prefill", partial(attention, _attend(backend), mixed))
    shared = 2 * page_size
    ends = ((1, shared + 1), (1, shared + 20), (0, 0), (1, shared + page_size + 1))
    cascade = Case("cascade", ends, padding=1, shared=shared, **sizes)
    yield Check("cascade", partial(_cascade, backend, cascade))
    for name, dtype in (("write bfloat16", jnp.bfloat16), ("write int8", jnp.int8)):
        yield Check(name, partial(_write, backend, dtype, kv, head_dim, page_size))
    yield Check("copy", partial(_copy, backend, kv, head_dim, page_size))


def mosaic_checks(head_dim: int, page_size: int) -> Iterator[Check]:
    """Attention in Mosaic's interpreter: few and short sequences, every program costs there."""
    heads, kv_heads = HEADS[head_dim]
    sizes: dict[str, Any] = {
        "head_dim": head_dim,
        "page_size": page_size,
        "dtype": "bfloat16",
        "heads": heads // kv_heads,
        "kv_heads": 1,
    }
    ends = ((0, 0), (1, 1), (1, page_size + 1))
    decode = Case("decode", ends, padding=1, **sizes)
    mixed = Case("prefill", ((3, page_size + 2), (1, 9)), window=page_size + 1, **sizes)
    for name, splits, case in (("v1", 1, decode), ("v2", 2, decode)):
        config = _split("mosaic", case, splits)
        yield Check(f"mosaic decode {name}", partial(attention, _attend("mosaic", config), case))
    yield Check("mosaic prefill", partial(attention, _attend("mosaic"), mixed))


def matmul_checks() -> Iterator[Check]:
    """Products with packed weights whose last tiles are not full."""
    for bits in (4, 8):
        yield Check(f"matmul w{bits}a16", partial(_matmul, bits))


def _matmul(bits: int) -> None:
    random = np.random.default_rng(bits)
    num_tokens, num_out, num_in, group = 5, 70, 512, 128
    numbers = random.integers(0, 2**bits, (num_out, num_in))
    zero = random.integers(0, 2**bits, (num_out, num_in // group))
    scale = random.uniform(0.5, 2.0, zero.shape).astype(np.float16)
    x = random.normal(size=(num_tokens, num_in)).astype(jnp.bfloat16)
    weight = pack(numbers, scale, zero, bits=bits)
    got = jax.jit(partial(quantized_matmul, backend="triton"))(x, weight)
    factor = scale.astype(np.float64).repeat(group, 1)
    want = x.astype(np.float64) @ ((numbers - zero.repeat(group, 1)) * factor).T
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=0.01, atol=2**bits / 16)


def _attend(backend: str, config: Any = None) -> Callable[..., Any]:
    return jax.jit(
        partial(ragged_paged_attention, backend=backend, config=config), static_argnames=_STATIC
    )


def _split(backend: str, case: Case, splits: int) -> Any:
    """The default configuration with another number of splits."""

    given = {name: jnp.asarray(x) for name, x in build(case).arguments.items()}
    call = call_of(AttentionInputs(**given))
    config = module_of(backend).Config.choose(call)
    return replace(config, decode=replace(config.decode, splits=splits))


def guarded(problem: Problem) -> dict[str, np.ndarray]:
    """The arguments with poisoned pages at both ends of the pool, and tables that point outside."""
    given = dict(problem.arguments)
    page_size = given["k_pages"].shape[2]
    given |= {name: x for name, x in problem.options.items() if name in ("k_scale", "v_scale")}
    for name in given.keys() & {"k_pages", "v_pages", "k_scale", "v_scale"}:
        # int8 has no NaN, but its factors have.
        poison = 127 if given[name].dtype == np.int8 else np.nan
        given[name] = np.concatenate((given[name], np.full_like(given[name][:1], poison)))
    needed = -(-given["kv_lens"] // page_size)
    columns = np.arange(given["block_tables"].shape[1])
    held = columns < needed[:, None]
    given["block_tables"] = np.where(held, given["block_tables"], _FAR).astype(np.int32)
    return given


def attention(attend: Callable[..., Any], case: Case) -> None:
    """Compare attention over guarded memory with the oracle."""
    problem = build(case)
    arrays = {name: jnp.asarray(x) for name, x in guarded(problem).items()}
    compare(attend(**(problem.options | arrays), return_lse=True), problem, case, _SLACK)


def _cascade(backend: str, case: Case) -> None:
    problem = build(case)
    arrays = {name: jnp.asarray(x) for name, x in guarded(problem).items()}
    cascade = jax.jit(partial(cascade_attention, backend=backend, return_lse=True))
    compare(cascade(**arrays, shared_len=case.shared), problem, case, _SLACK)


def _write(backend: str, dtype: Any, kv_heads: int, head_dim: int, page_size: int) -> None:
    random = np.random.default_rng(0)
    shape = (5, kv_heads, page_size, head_dim)
    before = random.integers(-9, 9, (2, *shape)).astype(dtype)
    k, v = random.normal(size=(2, 4, kv_heads, head_dim)).astype(np.float32)
    slots = np.array([page_size, 3 * page_size - 1, 4 * page_size + 2, 0], np.int32)
    options = {}
    if np.dtype(dtype).itemsize == 1:
        factors = np.full((shape[0], page_size, kv_heads), 7, np.float32)
        options = {"k_scale": factors, "v_scale": factors.copy()}
    after = jax.jit(partial(write_kv, backend=backend))(*before, k, v, slots, **options)
    for old, new, held, factor in zip(before, (k, v), after, after[2:] or (None, None)):
        want, got = old.astype(np.float64), np.asarray(held).astype(np.float64)
        if factor is not None:
            got = got * np.asarray(factor).transpose(0, 2, 1)[..., None]
            want = want * 7
        for row, slot in zip(new, slots[:3]):
            want[slot // page_size, :, slot % page_size] = row
        error = 0.02 * np.abs(new).max() if factor is not None else 0.01 * np.abs(want)
        np.testing.assert_array_less(np.abs(got - want)[1:], (error + 1e-6 + 0 * want)[1:])


def _copy(backend: str, kv_heads: int, head_dim: int, page_size: int) -> None:
    pages = np.random.default_rng(0).normal(size=(6, kv_heads, page_size, head_dim))
    pages = pages.astype(np.float32)
    source, destination = np.array([4, 1, _FAR]), np.array([2, 5, _FAR])
    copy = jax.jit(partial(copy_pages, backend=backend))
    after = copy(pages, source.astype(np.int32), destination.astype(np.int32), jnp.int32(2))
    want = pages.copy()
    want[[2, 5]] = pages[[4, 1]]
    np.testing.assert_array_equal(after, want)
