"""Operands of PTX instructions: registers, constants, vectors, addresses."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from benchmarks.kernel_traffic.ptx.kernel import Instruction
from benchmarks.kernel_traffic.ptx.registers import NOWHERE, Known, Registers

Operand = Callable[[Registers], tuple[np.ndarray, Known]]


def integer(name: str) -> np.dtype:
    """Of an integer type `s32`, `u64`, `b16`, …; a float as the bits it is."""
    bits = int(re.findall(r"\d+", name)[0])
    return np.dtype(f"{'i' if name[0] == 's' else 'u'}{bits // 8}")


def operand(text: str) -> Operand:
    """A register, or a constant."""
    if text.startswith("!"):
        positive = operand(text[1:])

        def negated(registers: Registers) -> tuple[np.ndarray, Known]:
            value, known = positive(registers)
            return ~value.astype(bool), known

        return negated
    constant = _constant(text)
    if constant is None:
        return lambda registers: registers.read(text)
    value = np.full(1, constant & (2**64 - 1), np.uint64)
    return lambda registers: (value, None)


def _constant(text: str) -> int | None:
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"-?0[xX][0-9a-fA-F]+", text):
        return int(text, 16)
    if re.fullmatch(r"0[fFdD][0-9a-fA-F]+", text):
        return int(text[2:], 16)
    # What Triton and Mosaic GPU call the begin of shared memory.
    if text in ("global_smem", "__dynamic_shmem__0"):
        return 0
    return None


def as_integer(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The low bits of a value as another integer."""
    if value.dtype.itemsize == dtype.itemsize and value.dtype != bool:
        return value.view(dtype)
    return value.astype(np.dtype(f"u{dtype.itemsize}")).view(dtype)


def raw(value: np.ndarray) -> np.ndarray:
    return value if value.dtype == bool else value.view(f"u{value.dtype.itemsize}")


def vector(text: str) -> list[str]:
    return [part.strip() for part in text.strip("{} \t").split(",")]


def address_of(text: str) -> tuple[str, int]:
    """Base and displacement of `[base+4]`."""
    inside = text.strip("[] \t\n")
    base, _, offset = inside.partition("+")
    return base.strip(), int(offset.strip() or "0", 0)


def location(text: str) -> Operand:
    """uint64 address, and where it is known."""
    base, offset = address_of(text)
    read, added = operand(base), np.full(1, offset & (2**64 - 1), np.uint64)

    def locate(registers: Registers) -> tuple[np.ndarray, Known]:
        value, known = read(registers)
        address = np.broadcast_to(value.astype(np.uint64) + added, registers.lanes)
        return address, known

    return locate


def guarded(instruction: Instruction) -> Callable[[Registers], np.ndarray | None]:
    """The lanes whose predicate holds; None for all. The predicate must be known."""
    if instruction.guard is None:
        return lambda registers: None
    name, wanted = instruction.guard

    def lanes(registers: Registers) -> np.ndarray:
        value, known = registers.read(name)
        registers.must_know(known, f"line {instruction.line}: predicate {name}")
        return np.broadcast_to(value.astype(bool) == wanted, registers.lanes)

    return lanes


def writer(instruction: Instruction) -> Callable[[Registers, str, np.ndarray, Known], None]:
    """Write under the guard; where the guard is unknown, so is the result."""
    if instruction.guard is None:
        return lambda registers, name, value, known: registers.write(name, value, known)
    guard, wanted = instruction.guard

    def write(registers: Registers, name: str, value: np.ndarray, known: Known) -> None:
        held, held_known = registers.read(guard)
        if not registers.knows(held_known):
            registers.write(name, value, NOWHERE)
            return
        mask = np.broadcast_to(held.astype(bool) == wanted, registers.lanes)
        registers.write(name, value, known, mask)

    return write


def text_of(instruction: Instruction) -> str:
    return f"{'.'.join(instruction.opcode)} {', '.join(instruction.operands)}"
