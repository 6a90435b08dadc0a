"""Weights of 4 or 8 bits: memory layout and packing.

`w[n, k] = (q[n, k] - zero[n, k // group]) * scale[n, k // group]`, `q` unsigned. Two 4-bit numbers
share a byte, but not neighbours: the inputs are cut into blocks, and byte j of a block holds its
number j in the low half and number `block / 2 + j` in the high half. A row of bytes is then two
runs of consecutive inputs, each multiplied with a consecutive piece of the activations; nothing is
interleaved, neither here nor in a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array

_MOST_BLOCK = 128
# AWQ: nibble i of a word is column `_AWQ_ORDER[i]` of its eight.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuantizedWeight:
    """A matrix `[num_out, num_in]`.

    Attributes:
        packed: uint8, `[num_out, num_in / 2]` for 4 bits, `[num_out, num_in]` for 8.
        scale: floating point, `[num_out, num_groups]`.
        zero: uint8 `[num_out, num_groups]`, the number that stands for 0.
        order: int32 `[num_in]` or None. Number k belongs to input `order[k]` (GPTQ's act-order:
            inputs sorted by group).
        bits: 4 or 8.
    """

    packed: Array
    scale: Array
    zero: Array
    order: Array | None = None
    bits: int = field(default=4, metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        num_out, num_bytes = self.packed.shape
        return num_out, num_bytes * 8 // self.bits

    @property
    def group(self) -> int:
        """Inputs that share a scale and a zero."""
        return self.shape[1] // self.scale.shape[1]

    @property
    def block(self) -> int:
        """Inputs whose numbers lie in consecutive bytes; a group is a whole number of blocks."""
        return block_of(self.group)

    def dequantize(self, dtype: jax.typing.DTypeLike = jnp.float32) -> Array:
        """The matrix `[num_out, num_in]`, its inputs in their own order."""
        numbers = self.packed
        if self.bits == 4:
            num_out, num_in = self.shape
            halves = numbers.reshape(num_out, num_in // self.block, 1, self.block // 2)
            numbers = jnp.concatenate([halves & 15, halves >> 4], axis=2).reshape(num_out, num_in)

        def each(x: Array) -> Array:
            return jnp.repeat(x.astype(jnp.float32), self.group, axis=1)

        matrix = (numbers.astype(jnp.float32) - each(self.zero)) * each(self.scale)
        if self.order is not None:
            matrix = jnp.zeros_like(matrix).at[:, self.order].set(matrix)
        return matrix.astype(dtype)


def block_of(group: int) -> int:
    """The largest power of two, at most 128, that divides a group."""
    return min(_MOST_BLOCK, group & -group)


def pack(
    numbers: np.ndarray,
    scale: np.ndarray,
    zero: np.ndarray,
    *,
    bits: int = 4,
    order: np.ndarray | None = None,
) -> QuantizedWeight:
    """Unsigned numbers `[num_out, num_in]` in their place; scale, zero `[num_out, num_groups]`.

    Raises ValueError if the sizes do not fit, or a number or zero is out of range.
    """
    _check_bits(bits)
    (num_out, num_in), num_groups = numbers.shape, scale.shape[1]
    if num_in % num_groups or scale.shape != zero.shape or len(scale) != num_out:
        raise ValueError(
            f"numbers {list(numbers.shape)}, scale {list(scale.shape)} and zero "
            f"{list(zero.shape)} do not fit: the last two must be [{num_out}, groups], and the "
            f"groups equal parts of {num_in}"
        )
    for name, array, most in (("numbers", numbers, 2**bits - 1), ("zero", zero, 255)):
        if array.min(initial=0) < 0 or array.max(initial=0) > most:
            raise ValueError(f"{name} must be integers from 0 to {most}")
    packed: np.ndarray = np.ascontiguousarray(numbers, np.uint8)
    if bits == 4:
        block = block_of(num_in // num_groups)
        if block < 2:
            raise ValueError(f"groups of {num_in // num_groups} inputs must be even")
        halves = packed.reshape(num_out, num_in // block, 2, block // 2)
        packed = (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(num_out, num_in // 2)
    return QuantizedWeight(
        jnp.asarray(packed),
        jnp.asarray(scale),
        jnp.asarray(zero, jnp.uint8),
        None if order is None else jnp.asarray(order, jnp.int32),
        bits,
    )


def quantize_weight(weight: np.ndarray, *, bits: int = 4, group: int = 128) -> QuantizedWeight:
    """Round `[num_out, num_in]` to the nearest number of its group's range.

    group: inputs that share a scale; -1 is a whole row. For layers without calibrated weights.
    """
    num_out, num_in = weight.shape
    group = num_in if group == -1 else group
    if group < 1 or num_in % group:
        raise ValueError(f"group={group} must be -1 or divide num_in={num_in}")
    grouped = np.asarray(weight, np.float32).reshape(num_out, num_in // group, group)
    # 0 is always representable: padding and pruned weights stay exact.
    low, high = grouped.min(-1).clip(max=0), grouped.max(-1).clip(min=0)
    most = 2**bits - 1
    scale = np.where(high > low, (high - low) / most, 1.0).astype(np.float32)
    zero = np.rint(-low / scale).clip(0, most)
    numbers = np.rint(grouped / scale[..., None] + zero[..., None]).clip(0, most)
    return pack(numbers.reshape(num_out, num_in).astype(np.int32), scale, zero, bits=bits)


def from_gptq(
    qweight: np.ndarray,
    qzeros: np.ndarray,
    scales: np.ndarray,
    g_idx: np.ndarray | None = None,
    *,
    group: int,
    symmetric: bool,
    bits: int = 4,
    zeros_minus_one: bool = True,
) -> QuantizedWeight:
    """GPTQ's arrays, as AutoGPTQ and GPTQModel save them.

    Args:
        qweight: int32 `[num_in * bits / 32, num_out]`; numbers along the inputs, lowest bits first.
        qzeros: int32 `[num_groups, num_out * bits / 32]`; along the outputs, lowest bits first.
        scales: `[num_groups, num_out]`.
        g_idx: int32 `[num_in]`, the group of each input (act-order); by default consecutive.
        group, symmetric: the checkpoint's `group_size` (-1 is all inputs) and `sym`.
        zeros_minus_one: whether `qzeros` holds one less than the zero (format "gptq"; not so in
            "gptq_v2"). In "gptq" a zero of 0 is stored as the largest number.

    Raises:
        ValueError: sizes that do not fit, groups of unequal size, or symmetric weights whose zero
            is not the middle: `zeros_minus_one` is then not what the file was made with.
    """
    _check_bits(bits)
    numbers = _unpacked(qweight.T, bits)
    _check_groups(numbers.shape[1], len(scales), group)
    zero = _unpacked(qzeros, bits).T
    if zeros_minus_one:
        zero = (zero + 1) & (2**bits - 1)
    middle = 1 << (bits - 1)
    if symmetric and (zero != middle).any():
        found = ", ".join(map(str, np.unique(zero)[:4]))
        raise ValueError(
            f"zeros_minus_one={zeros_minus_one} gives the zeros {found}, but symmetric weights of "
            f"{bits} bits have {middle}: the file's format is not what it says"
        )
    order = None
    if g_idx is not None:
        order = _order(np.asarray(g_idx), numbers.shape[1], len(scales))
        numbers = numbers[:, order]
        if (order == np.arange(len(order))).all():
            order = None
    return pack(numbers, scales.T, zero, bits=bits, order=order)


def from_awq(
    qweight: np.ndarray, qzeros: np.ndarray, scales: np.ndarray, *, group: int
) -> QuantizedWeight:
    """AWQ's arrays ("gemm" version, 4 bits).

    Args:
        qweight: int32 `[num_in, num_out / 8]`; numbers along the outputs, in AWQ's order of eight.
        qzeros: int32 `[num_groups, num_out / 8]`, the same.
        scales: `[num_groups, num_out]`.
        group: the checkpoint's `group_size`; -1 is all inputs.

    Raises ValueError if the sizes do not fit.
    """
    _check_groups(len(qweight), len(scales), group)
    place = np.argsort(_AWQ_ORDER)

    def columns(words: np.ndarray) -> np.ndarray:
        mixed = _unpacked(words, 4)
        return mixed.reshape(len(words), -1, 8)[:, :, place].reshape(mixed.shape).T

    return pack(columns(qweight), scales.T, columns(qzeros))


def _check_bits(bits: int) -> None:
    if bits not in (4, 8):
        raise ValueError(f"bits={bits} must be 4 or 8")


def _check_groups(num_in: int, num_groups: int, group: int) -> None:
    """Check that there are as many groups as `group` says, all of equal size."""
    size = num_in if group == -1 else group
    if size < 1 or num_in % size or num_in // size != num_groups:
        raise ValueError(
            f"group={group} does not fit {num_in} inputs with {num_groups} rows of scales: it must "
            "be -1 (one row) or divide the inputs into as many groups as there are rows"
        )


def _order(g_idx: np.ndarray, num_in: int, num_groups: int) -> np.ndarray:
    """The inputs sorted by group."""
    order = np.argsort(g_idx, kind="stable")
    groups = np.repeat(np.arange(num_groups), num_in // num_groups)
    if g_idx.shape != (num_in,) or (g_idx[order] != groups).any():
        raise ValueError(f"g_idx must put {num_in} inputs into {num_groups} groups of one size")
    return order


def _unpacked(words: np.ndarray, bits: int) -> np.ndarray:
    """Numbers `[rows, words * 32 / bits]` of int32 words `[rows, words]`, lowest bits first."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    unsigned = np.ascontiguousarray(words).view(np.uint32)
    numbers = unsigned[:, :, None] >> shifts & np.uint32(2**bits - 1)
    return numbers.reshape(len(words), -1).astype(np.int32)
