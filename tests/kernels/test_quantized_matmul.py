"""Packed weights: what GPTQ and AWQ mean by their arrays, and products against float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import QuantizedWeight, from_awq, from_gptq, quantize_weight, quantized_matmul
from pallas_kernels.quantized.weight import pack
from pallas_kernels.triton.matmul import Config
from tests.kernels.test_lowering import KERNEL, MESH


def made(num_out: int, num_in: int, group: int, bits: int = 4, seed: int = 0) -> QuantizedWeight:
    random = np.random.default_rng(seed)
    groups = (num_out, num_in // group)
    return pack(
        random.integers(0, 2**bits, (num_out, num_in)),
        random.uniform(0.5, 2.0, groups).astype(np.float32),
        random.integers(0, 2**bits + 1, groups).clip(max=255),
        bits=bits,
    )


def meant(weight: QuantizedWeight) -> np.ndarray:
    """The matrix in float64, number by number."""
    num_out, num_in = weight.shape
    packed, zero = np.asarray(weight.packed), np.asarray(weight.zero, np.int64)
    scale = np.asarray(weight.scale, np.float64)
    block = weight.block
    matrix = np.empty((num_out, num_in))
    for k in range(num_in):
        if weight.bits == 8:
            numbers = packed[:, k].astype(np.int64)
        else:
            place, inside = k // block * (block // 2), k % block
            byte = packed[:, place + inside % (block // 2)].astype(np.int64)
            numbers = byte >> 4 if inside >= block // 2 else byte & 15
        g = k // weight.group
        matrix[:, k] = (numbers - zero[:, g]) * scale[:, g]
    if weight.order is not None:
        matrix[:, np.asarray(weight.order)] = matrix.copy()
    return matrix


def words(numbers: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> np.ndarray:
    """`[rows, n]` as int32 `[rows, n * bits / 32]`, one number after the other."""
    each = 32 // bits
    order = order or tuple(range(each))
    packed = np.zeros((len(numbers), numbers.shape[1] // each), np.uint32)
    for column in range(packed.shape[1]):
        for nibble, place in enumerate(order):
            packed[:, column] |= numbers[:, column * each + place].astype(np.uint32) << np.uint32(
                bits * nibble
            )
    return packed.view(np.int32)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("act_order", [False, True])
def test_gptq_means_what_its_authors_say(bits: int, act_order: bool) -> None:
    """w[k, n] = scales[g_idx[k], n] * (q[k, n] - (zero[g_idx[k], n] + 1))"""
    random = np.random.default_rng(1)
    num_in, num_out, group = 128, 16, 32
    q = random.integers(0, 2**bits, (num_in, num_out))
    zeros = random.integers(0, 2**bits - 1, (num_in // group, num_out))
    scales = random.uniform(0.5, 1.5, zeros.shape).astype(np.float16)
    g_idx = np.arange(num_in) // group
    if act_order:
        random.shuffle(g_idx)
    weight = from_gptq(
        words(q.T, bits).T,
        words(zeros, bits),
        scales,
        g_idx,
        group=group,
        symmetric=False,
        bits=bits,
    )
    want = scales[g_idx].astype(np.float64) * (q - (zeros[g_idx] + 1))
    assert (weight.order is not None) == act_order
    np.testing.assert_allclose(weight.dequantize(), want.T, rtol=1e-6)


def test_awq_means_what_its_authors_say() -> None:
    """Nibble i of a word is column (0, 2, 4, 6, 1, 3, 5, 7)[i]; w = scales * (q - zero)."""
    random = np.random.default_rng(2)
    num_in, num_out, group = 64, 24, 32
    q = random.integers(0, 16, (num_in, num_out))
    zeros = random.integers(0, 16, (num_in // group, num_out))
    scales = random.uniform(0.5, 1.5, zeros.shape).astype(np.float16)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    weight = from_awq(words(q, 4, order), words(zeros, 4, order), scales, group=group)
    g = np.arange(num_in) // group
    np.testing.assert_allclose(
        weight.dequantize(), (scales[g].astype(np.float64) * (q - zeros[g])).T, rtol=1e-6
    )


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 128), (4, 96), (8, 64), (8, -1)])
def test_dequantizing_and_rounding(bits: int, group: int) -> None:
    weight = made(7, 192, 192 if group == -1 else 64 if group == 128 else group, bits)
    np.testing.assert_allclose(weight.dequantize(), meant(weight), rtol=1e-6)
    original = np.random.default_rng(3).normal(size=(5, 192)).astype(np.float32)
    original[0] = 0
    rounded = quantize_weight(original, bits=bits, group=192 if group == 128 else group)
    step = np.repeat(np.asarray(rounded.scale), rounded.group, axis=1)
    assert (np.abs(rounded.dequantize() - original) <= step * 0.5 + 1e-6).all()
    assert not rounded.dequantize()[0].any()


CASES: list[tuple[int, int, int, int, int, Any, Config | None]] = [
    (1, 64, 128, 128, 4, jnp.float32, None),
    (5, 70, 256, 64, 4, jnp.float32, None),
    (16, 33, 192, 32, 4, jnp.bfloat16, None),
    (3, 64, 192, 96, 4, jnp.float16, None),
    (40, 96, 128, 128, 8, jnp.bfloat16, None),
    (7, 48, 1024, 128, 4, jnp.float32, Config(outputs=32, splits=4)),
    (7, 48, 640, 128, 8, jnp.float32, Config(outputs=16, splits=4)),
    (70, 16, 64, 32, 4, jnp.float32, None),
]


@pytest.mark.parametrize("backend", ["xla", "triton"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_against_float64(backend: str, case: Any) -> None:
    num_tokens, num_out, num_in, group, bits, dtype, config = case
    weight = made(num_out, num_in, group, bits)
    x = jnp.asarray(np.random.default_rng(4).normal(size=(num_tokens, num_in)), dtype)
    got = quantized_matmul(x, weight, backend=backend, config=config)
    assert got.dtype == dtype
    matrix, wide = meant(weight), np.asarray(x, np.float64)
    error = np.abs(np.asarray(got, np.float64) - wide @ matrix.T)
    # Of the sum of magnitudes: the rounding of the result, and of the weights on the XLA path.
    bound = (np.abs(wide) @ np.abs(matrix).T) * {4: 2e-6, 2: 1e-2}[jnp.dtype(dtype).itemsize]
    assert (error <= bound).all()


def test_inputs_out_of_order() -> None:
    weight = made(32, 128, 32)
    order = np.random.default_rng(5).permutation(128).astype(np.int32)
    mixed = QuantizedWeight(weight.packed, weight.scale, weight.zero, jnp.asarray(order))
    x = jnp.asarray(np.random.default_rng(6).normal(size=(4, 128)), jnp.float32)
    want = np.asarray(x, np.float64) @ meant(mixed).T
    for backend in ("xla", "triton"):
        np.testing.assert_allclose(
            quantized_matmul(x, mixed, backend=backend), want, rtol=1e-4, atol=1e-3
        )


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    weight, config = made(64, 256, 64), Config(splits=2)
    x = jnp.asarray(np.random.default_rng(7).normal(size=(9, 256)), jnp.float32)
    every = quantized_matmul(x, weight, backend="triton", config=config)
    alone = quantized_matmul(x[4:5], weight, backend="triton", config=config)
    assert (every[4:5] == alone).all()


@pytest.mark.parametrize(("bits", "num_tokens"), [(4, 1), (4, 64), (8, 16)])
def test_it_lowers_for_cuda(bits: int, num_tokens: int) -> None:
    weight = jax.eval_shape(lambda: made(256, 512, 128, bits))
    x = jax.ShapeDtypeStruct((num_tokens, 512), jnp.bfloat16)
    with jax.sharding.use_abstract_mesh(MESH):
        lowered = jax.jit(quantized_matmul).trace(x, weight).lower(lowering_platforms=("cuda",))
    assert lowered.as_text().count(KERNEL) == 1


def test_what_does_not_fit_is_refused() -> None:
    weight = made(8, 64, 16)
    x = jnp.zeros((2, 64))
    with pytest.raises(NotImplementedError, match="groups of 16 inputs"):
        quantized_matmul(x, weight, backend="triton")
    with pytest.raises(ValueError, match=r"x must be \[num_tokens, 64\]"):
        quantized_matmul(x[:, :32], weight)
    with pytest.raises(ValueError, match="backend='cuda' is unknown"):
        quantized_matmul(x, weight, backend="cuda")
    with pytest.raises(ValueError, match="numbers must be integers from 0 to 15"):
        pack(np.full((2, 32), 16), np.ones((2, 1)), np.zeros((2, 1)))
    with pytest.raises(ValueError, match="do not fit"):
        pack(np.zeros((2, 32), int), np.ones((2, 3)), np.zeros((2, 3)))
