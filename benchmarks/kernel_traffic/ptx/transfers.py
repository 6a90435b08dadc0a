"""PTX instructions that read and write memory, device or shared."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.kernel_traffic.ptx.kernel import Instruction
from benchmarks.kernel_traffic.ptx.operands import (
    as_integer,
    guarded,
    integer,
    location,
    operand,
    vector,
)
from benchmarks.kernel_traffic.ptx.registers import NOWHERE, Known, Registers

# Takes threads; a branch gives back the lanes that take it.
Step = Callable[[Any], np.ndarray | None]


def _width(instruction: Instruction) -> tuple[int, int]:
    """Bytes of an element, and how many."""
    counts = [int(x[1:]) for x in instruction.opcode if re.fullmatch(r"v\d", x)]
    return integer(instruction.opcode[-1]).itemsize, counts[0] if counts else 1


def _spread(
    registers: Registers, data: np.ndarray, known: Known, names: list[str], mask: np.ndarray | None
) -> None:
    """Bytes `[num_lanes, width]` into registers."""
    size = data.shape[1] // len(names)
    for index, name in enumerate(names):
        part = np.ascontiguousarray(data[:, index * size : (index + 1) * size])
        registers.write(name, part.view(f"u{size}")[:, 0], known, mask)


def _gather(
    registers: Registers, reads: list[Any], size: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Bytes `[num_lanes, width]` of registers, and which are known; None where no lane's are."""
    values = [read(registers) for read in reads]
    if all(known is NOWHERE for _, known in values):
        return None
    data = np.zeros((registers.lanes, size * len(reads)), np.uint8)
    where = np.zeros(data.shape, bool)
    for index, (value, known) in enumerate(values):
        spread = np.broadcast_to(as_integer(value, np.dtype(f"u{size}")), registers.lanes)
        part = slice(index * size, (index + 1) * size)
        data[:, part] = np.ascontiguousarray(spread).view(np.uint8).reshape(-1, size)
        where[:, part] = np.broadcast_to(True if known is None else known, registers.lanes)[:, None]
    return data, where


def load_global(instruction: Instruction) -> Step:
    size, count = _width(instruction)
    names, locate = vector(instruction.operands[0]), location(instruction.operands[1])
    guard, line = guarded(instruction), instruction.line
    width = np.full(1, size * count)

    def step(threads: Any) -> None:
        registers = threads.registers
        mask = guard(registers)
        address, known = locate(registers)
        registers.must_know(known, f"line {line}: address", mask)
        threads.memory.access(address, width, registers.lanes_of(mask), line, write=False)
        data, found = threads.memory.read(address, size * count)
        _spread(registers, data, found, names, mask)

    return step


def store_global(instruction: Instruction) -> Step:
    size, count = _width(instruction)
    locate, guard = location(instruction.operands[0]), guarded(instruction)
    width, line = np.full(1, size * count), instruction.line

    def step(threads: Any) -> None:
        registers = threads.registers
        mask = guard(registers)
        address, known = locate(registers)
        registers.must_know(known, f"line {line}: address", mask)
        threads.memory.access(address, width, registers.lanes_of(mask), line, write=True)

    return step


def in_shared(
    threads: Any, address: np.ndarray, width: int, line: int, lanes: np.ndarray
) -> np.ndarray:
    """Where the lanes' addresses are in the shared memory of all blocks, in pieces of `width`."""
    offset = as_integer(address, np.dtype(np.uint32)).astype(np.int64)
    size = threads.shared_size
    if (lanes & ((offset + width > size) | (offset % width != 0))).any():
        worst = int(offset[lanes].max())
        raise IndexError(f"line {line}: {width} bytes at {worst} of {size} of shared memory")
    return (np.where(lanes, offset, 0) + threads.block) // width


def _read_shared(threads: Any, index: np.ndarray, width: int) -> tuple[np.ndarray, Known]:
    """Bytes `[num_lanes, width]`, and which lanes' are known."""
    known = np.all(_pieces(threads.shared_known, index, width), axis=1)
    if not known.any():
        return _nothing(width)
    return _pieces(threads.shared, index, width), known


def _nothing(width: int) -> tuple[np.ndarray, Known]:
    return np.zeros((1, width), np.uint8), NOWHERE


def _pieces(bytes_: np.ndarray, index: np.ndarray, width: int) -> np.ndarray:
    found = bytes_.view(f"V{width}")[index]
    return found.view(bytes_.dtype).reshape(-1, width)


def _put(bytes_: np.ndarray, index: np.ndarray, data: np.ndarray) -> None:
    width = data.shape[1]
    bytes_.view(f"V{width}")[index] = np.ascontiguousarray(data).view(f"V{width}")[:, 0]


def load_shared(instruction: Instruction) -> Step:
    size, count = _width(instruction)
    names, locate = vector(instruction.operands[0]), location(instruction.operands[1])
    guard, line = guarded(instruction), instruction.line

    def step(threads: Any) -> None:
        registers = threads.registers
        mask = guard(registers)
        address, known = locate(registers)
        data, found = _nothing(size * count)
        if registers.knows(known, mask):
            index = in_shared(threads, address, size * count, line, registers.lanes_of(mask))
            data, found = _read_shared(threads, index, size * count)
        _spread(registers, data, found, names, mask)

    return step


def store_shared(instruction: Instruction) -> Step:
    size, count = _width(instruction)
    locate, guard, line = location(instruction.operands[0]), guarded(instruction), instruction.line
    reads = [operand(name) for name in vector(instruction.operands[1])]

    def step(threads: Any) -> None:
        registers = threads.registers
        mask = guard(registers)
        address, known = locate(registers)
        registers.must_know(known, f"line {line}: shared address", mask)
        lanes = registers.lanes_of(mask)
        index = in_shared(threads, address, size * count, line, lanes)[lanes]
        _remember(threads, index, lanes, _gather(registers, reads, size), size * count)

    return step


def _remember(
    threads: Any,
    index: np.ndarray,
    lanes: np.ndarray,
    held: tuple[np.ndarray, np.ndarray] | None,
    width: int,
) -> None:
    if held is None:
        _put(threads.shared_known, index, np.zeros((1, width), bool))
        return
    _put(threads.shared, index, held[0][lanes])
    _put(threads.shared_known, index, held[1][lanes])


def _matrix_cells(threads: Any, address: np.ndarray, part: int, line: int) -> np.ndarray:
    """Where each lane's 4 bytes are in the 8x8 matrix number `part`, whose rows of 16 bytes begin
    where 8 lanes of the warp say.
    """
    lane = np.arange(threads.registers.lanes)
    row = lane // 32 * 32 + 8 * part + lane % 32 // 4
    lanes = threads.registers.lanes_of(None)
    return in_shared(threads, address[row], 16, line, lanes) * 4 + lane % 4


def load_matrix(instruction: Instruction) -> Step:
    """`ldmatrix`; integers take this way too, 32 bits at a time."""
    names, locate = vector(instruction.operands[0]), location(instruction.operands[1])
    turned, line = "trans" in instruction.opcode, instruction.line

    def step(threads: Any) -> None:
        registers = threads.registers
        address, known = locate(registers)
        for part, name in enumerate(names):
            data, found = _nothing(4)
            if not turned and registers.knows(known):
                cells = _matrix_cells(threads, address, part, line)
                data, found = _read_shared(threads, cells, 4)
            _spread(registers, data, found, [name], None)

    return step


def store_matrix(instruction: Instruction) -> Step:
    """`stmatrix`; what it stores turned around is forgotten."""
    locate, names = location(instruction.operands[0]), vector(instruction.operands[1])
    turned, line = "trans" in instruction.opcode, instruction.line
    reads = [operand(name) for name in names]

    def step(threads: Any) -> None:
        registers = threads.registers
        address, known = locate(registers)
        registers.must_know(known, f"line {line}: shared address")
        lanes = registers.lanes_of(None)
        for part, read in enumerate(reads):
            cells = _matrix_cells(threads, address, part, line)[lanes]
            held = None if turned else _gather(registers, [read], 4)
            _remember(threads, cells, lanes, held, 4)

    return step


def copy(instruction: Instruction) -> Step:
    """`cp.async [shared], [global], size, source_size`; what is beyond source_size is zero."""
    to, origin = (location(text) for text in instruction.operands[:2])
    size = int(instruction.operands[2], 0)
    given = instruction.operands[3] if len(instruction.operands) > 3 else str(size)
    taken, guard, line = operand(given), guarded(instruction), instruction.line

    def step(threads: Any) -> None:
        registers = threads.registers
        mask = guard(registers)
        (target, target_known), (address, known) = to(registers), origin(registers)
        width, width_known = taken(registers)
        registers.must_know(target_known, f"line {line}: shared address", mask)
        registers.must_know(width_known, f"line {line}: size", mask)
        lanes = registers.lanes_of(mask)
        width = as_integer(width, np.dtype(np.int32)).astype(np.int64)
        width = np.broadcast_to(width, registers.lanes)
        reading = lanes & (width > 0)
        registers.must_know(known, f"line {line}: address", reading)
        threads.memory.access(address, width, reading, line, write=False)
        data, found = threads.memory.read(address, size)
        data[np.arange(size) >= width[:, None]] = 0
        where = np.broadcast_to((found | (width == 0))[:, None], (registers.lanes, size))
        index = in_shared(threads, target, size, line, lanes)[lanes]
        _remember(threads, index, lanes, (data, where), size)

    return step
