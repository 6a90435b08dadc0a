"""Bug bank, quantized weights: what GPTQ and AWQ files mean, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import QuantizedWeight, from_awq, from_gptq, quantize_weight, quantized_matmul
from tests.kernels.test_quantized_matmul import words

INPUTS, OUTPUTS = 128, 96
FORMATS = ("gptq", "gptq_v2")


@dataclass(frozen=True)
class GptqFile:
    """A matrix `[inputs, outputs]` as a GPTQ tool writes it, and what the tool meant by it.

    stored: what `zero` looks like in the file.
    """

    numbers: np.ndarray
    zero: np.ndarray
    scales: np.ndarray
    g_idx: np.ndarray
    bits: int
    group: int
    symmetric: bool
    label: str
    stored: np.ndarray

    def load(self, g_idx: np.ndarray | None = None) -> QuantizedWeight:
        return from_gptq(
            words(self.numbers.T, self.bits).T,
            words(self.stored, self.bits),
            self.scales,
            g_idx,
            group=self.group,
            symmetric=self.symmetric,
            bits=self.bits,
            zeros_minus_one=self.label == "gptq",
        )

    @property
    def dense(self) -> np.ndarray:
        """`[outputs, inputs]` in float64, exact in float32: row r by its own group."""
        numbers = self.numbers - self.zero[self.g_idx]
        return (numbers * self.scales[self.g_idx].astype(np.float64)).T


def sampled(inputs: int = INPUTS) -> np.ndarray:
    return np.random.default_rng(inputs).standard_normal((inputs, OUTPUTS)).astype(np.float32)


def gptq(
    matrix: np.ndarray,
    *,
    bits: int = 4,
    group: int = 32,
    symmetric: bool = True,
    label: str = "gptq",
    act_order: bool = False,
    zero: np.ndarray | None = None,
) -> GptqFile:
    """Round a matrix to the nearest; `zero [groups, outputs]` forces the zeros."""
    inputs = len(matrix)
    most = 2**bits - 1
    g_idx = np.arange(inputs) // (inputs if group == -1 else group)
    if act_order:
        np.random.default_rng(1).shuffle(g_idx)
    grouped = [matrix[g_idx == g] for g in range(g_idx.max() + 1)]
    low = np.array([rows.min(0) for rows in grouped]).clip(max=0)
    high = np.array([rows.max(0) for rows in grouped]).clip(min=0)
    span = 2 * np.maximum(-low, high) if symmetric else high - low
    scales = (span / most).astype(np.float16)
    if zero is None:
        middle = np.full(scales.shape, 1 << (bits - 1))
        zero = middle if symmetric else np.rint(-low / scales.astype(np.float32)).astype(int)
    numbers = np.rint(matrix / scales[g_idx].astype(np.float32)).astype(int) + zero[g_idx]
    # A tool that stores one less keeps the lowest bits of it.
    stored = zero - 1 & most if label == "gptq" else zero
    return GptqFile(
        numbers.clip(0, most), zero, scales, g_idx, bits, group, symmetric, label, stored
    )


def assert_means(weight: QuantizedWeight, dense: np.ndarray) -> None:
    """The matrix to the last bit, and products with it by every back end."""
    np.testing.assert_array_equal(weight.dequantize(), dense)
    x = np.random.default_rng(2).standard_normal((3, dense.shape[1])).astype(np.float32)
    for backend in ("xla", "triton"):
        found = quantized_matmul(jnp.asarray(x), weight, backend=backend)
        np.testing.assert_allclose(found, x @ dense.T, rtol=1e-4, atol=1e-3, err_msg=backend)


@pytest.mark.parametrize("label", FORMATS)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_qz_01_both_formats_are_read_to_the_last_bit(
    bits: int, symmetric: bool, label: str
) -> None:
    matrix = sampled()
    for group in (32, 64, 128):
        file = gptq(matrix, bits=bits, group=group, symmetric=symmetric, label=label)
        weight = file.load()
        np.testing.assert_array_equal(weight.dequantize(), file.dense)
        step = file.scales[file.g_idx].T
        assert (np.abs(weight.dequantize() - matrix.T) < step).all()
    assert_means(weight, file.dense)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("label", FORMATS)
def test_qz_01_a_label_that_contradicts_the_data_is_refused(label: str, bits: int) -> None:
    (other,) = set(FORMATS) - {label}
    file = replace(gptq(sampled(), bits=bits, label=label), label=other)
    middle = 1 << (bits - 1)
    read = middle + 1 if other == "gptq" else middle - 1
    with pytest.raises(ValueError, match=f"gives the zeros {read}, but .* have {middle}: the file"):
        file.load()


@pytest.mark.parametrize("label", FORMATS)
@pytest.mark.parametrize("bits", [4, 8])
def test_qz_02_zeros_have_their_full_range(bits: int, label: str) -> None:
    most = 2**bits - 1
    groups = INPUTS // 32
    zero = np.arange(groups * OUTPUTS).reshape(groups, OUTPUTS) & most
    assert set(zero.flat) == set(range(most + 1))
    file = gptq(sampled(), bits=bits, symmetric=False, label=label, zero=zero)
    assert_means(file.load(), file.dense)


def test_qz_02_zeros_of_awq_have_their_full_range() -> None:
    file = gptq(sampled(), symmetric=False, zero=np.tile(np.arange(OUTPUTS) % 16, (4, 1)))
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    numbers, zeros = (words(x, 4, order) for x in (file.numbers, file.zero))
    weight = from_awq(numbers, zeros, file.scales, group=32)
    assert_means(weight, file.dense)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_qz_02_a_group_of_minus_one_is_the_whole_input(bits: int, symmetric: bool) -> None:
    file = gptq(sampled(), bits=bits, group=-1, symmetric=symmetric)
    assert file.scales.shape == (1, OUTPUTS)
    assert not file.g_idx.any()
    for g_idx in (None, file.g_idx):
        weight = file.load(g_idx)
        assert weight.group == INPUTS
        assert weight.order is None
        assert_means(weight, file.dense)
    rounded = quantize_weight(sampled().T, bits=bits, group=-1)
    assert rounded.scale.shape == (OUTPUTS, 1)
    assert (np.abs(rounded.dequantize() - sampled().T) < np.asarray(rounded.scale)).all()


def test_qz_02_a_smaller_last_group_is_refused() -> None:
    """112 inputs in groups of 32 are four rows of scales, as four groups of 28 would be."""
    file = gptq(sampled(112))
    assert len(file.scales) == 4
    for g_idx in (None, file.g_idx):
        with pytest.raises(ValueError, match="group=32 does not fit 112 inputs with 4 rows"):
            file.load(g_idx)
    with pytest.raises(ValueError, match="group=32 does not fit 112 inputs with 4 rows"):
        from_awq(words(file.numbers, 4), words(file.zero, 4), file.scales, group=32)
    with pytest.raises(ValueError, match="group=32 must be -1 or divide num_in=112"):
        quantize_weight(sampled(112).T, group=32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"group": 64}, "group=64 does not fit 128 inputs with 4 rows"),
        ({"group": -1}, "group=-1 does not fit"),
        ({"group": 0}, "group=0 does not fit"),
        ({"bits": 3}, "bits=3 must be 4 or 8"),
    ],
    ids=str,
)
def test_qz_02_sizes_that_contradict_each_other_are_refused(
    change: dict[str, Any], message: str
) -> None:
    file = gptq(sampled())
    options: dict[str, Any] = {"group": 32, "symmetric": True} | change
    with pytest.raises(ValueError, match=message):
        from_gptq(words(file.numbers.T, 4).T, words(file.stored, 4), file.scales, **options)


@pytest.mark.parametrize("bits", [4, 8])
def test_qz_03_each_row_has_the_scale_of_its_group_in_any_order(bits: int) -> None:
    file = gptq(sampled(), bits=bits, act_order=True, symmetric=False)
    assert (np.diff(file.g_idx) < 0).any()
    assert_means(file.load(file.g_idx), file.dense)


def test_qz_03_without_g_idx_groups_are_consecutive() -> None:
    file = gptq(sampled())
    np.testing.assert_array_equal(file.load().dequantize(), file.load(file.g_idx).dequantize())


@pytest.mark.parametrize(
    "g_idx",
    [np.zeros(INPUTS, int), np.arange(INPUTS - 8) // 32, np.arange(INPUTS) // 32 - 1],
    ids=["one group", "short", "negative"],
)
def test_qz_03_a_g_idx_that_does_not_fit_is_refused(g_idx: np.ndarray) -> None:
    with pytest.raises(ValueError, match="g_idx must put 128 inputs into 4 groups of one size"):
        gptq(sampled()).load(g_idx)
