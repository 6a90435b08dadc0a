"""PTX instructions of Hopper's bulk copies (TMA) and the barriers that they complete.

A barrier's wait always succeeds: threads that copy need not run before those that wait, since what
is copied decides nothing. What a barrier is told to expect must be what comes, in bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.kernel_traffic.ptx.kernel import Instruction
from benchmarks.kernel_traffic.ptx.operands import (
    as_integer,
    guarded,
    location,
    operand,
    text_of,
    vector,
    writer,
)
from benchmarks.kernel_traffic.ptx.registers import NOWHERE, Undecided
from benchmarks.kernel_traffic.ptx.tensors import TensorMap, touch
from benchmarks.kernel_traffic.ptx.transfers import Step, in_shared

WARP = 32


class Unbalanced(Exception):
    """A barrier expects other bytes than come: the kernel would hang, or read too early."""


def elect(instruction: Instruction) -> Step:
    """`elect.sync lane|chosen, members`: the first active lane of each warp."""
    lane_name, chosen_name = instruction.operands[0].split("|")
    write = writer(instruction)

    def step(threads: Any) -> None:
        registers = threads.registers
        active = registers.lanes_of(None).reshape(-1, WARP)
        first = active.argmax(axis=1)[:, None]
        chosen = (np.arange(WARP) == first) & active
        lane = np.broadcast_to(first.astype(np.uint32), active.shape)
        write(registers, lane_name, lane.reshape(-1), None)
        write(registers, chosen_name, chosen.reshape(-1), None)

    return step


def wait(instruction: Instruction) -> Step:
    """`mbarrier.try_wait`."""
    write, done = writer(instruction), np.ones(1, bool)
    return lambda threads: write(threads.registers, instruction.operands[0], done, None)


def expect(instruction: Instruction) -> Step:
    """`mbarrier.arrive.expect_tx state, [barrier], bytes`."""
    state, barrier, given = instruction.operands
    locate, read = location(barrier), operand(given)
    guard, line = guarded(instruction), instruction.line

    def step(threads: Any) -> None:
        registers = threads.registers
        mask = guard(registers)
        value, known = read(registers)
        registers.must_know(known, f"line {line}: bytes", mask)
        value = np.broadcast_to(as_integer(value, np.dtype(np.uint32)), registers.lanes)
        _complete(threads, locate, value.astype(np.int64), registers.lanes_of(mask), line)
        registers.write(state, np.zeros(1, np.uint64), NOWHERE, mask)

    return step


def _complete(threads: Any, locate: Any, added: np.ndarray, lanes: np.ndarray, line: int) -> None:
    address, known = locate(threads.registers)
    threads.registers.must_know(known, f"line {line}: barrier", lanes)
    index = in_shared(threads, address, 8, line, lanes)
    np.add.at(threads.expected, index[lanes], added[lanes])


def balanced(expected: np.ndarray, shared_size: int) -> None:
    """Raise Unbalanced unless every barrier, one for each 8 bytes, got what it expected."""
    left = np.nonzero(expected)[0]
    if len(left):
        at, missing = int(left[0]), int(expected[left[0]])
        raise Unbalanced(
            f"the barrier at {8 * at % shared_size} of shared memory expects "
            f"{abs(missing)} bytes {'more' if missing > 0 else 'fewer'} than come"
        )


def copy_tensor(instruction: Instruction) -> Step:
    """`cp.async.bulk.tensor`: a box of a tensor map to shared memory, or back."""
    opcode, operands = instruction.opcode, instruction.operands
    if opcode[5:] == ("shared::cluster", "global", "mbarrier::complete_tx::bytes"):
        shared, tensor, barrier = operands
        complete = location(barrier)
    elif opcode[5:] == ("global", "shared::cta", "bulk_group"):
        (tensor, shared), complete = operands, None
    else:
        raise NotImplementedError(f"line {instruction.line}: {text_of(instruction)}")
    base, _, listed = tensor.strip("[] \t\n").partition("{")
    find, place = location(base.rstrip(", \t")), location(shared)
    reads = [operand(name) for name in reversed(vector(listed))]
    guard, line = guarded(instruction), instruction.line

    def step(threads: Any) -> None:
        registers = threads.registers
        lanes = registers.lanes_of(guard(registers))
        if not lanes.any():
            return
        held = [*(read(registers) for read in reads), find(registers), place(registers)]
        for _, known in held:
            registers.must_know(known, f"line {line}: coordinate or address", lanes)
        *coordinates, (address, _), (target, _) = held
        box = _map_at(threads, address[lanes], line)
        where = np.stack([_signed(value, registers.lanes)[lanes] for value, _ in coordinates], 1)
        threads.memory.faults += touch(box, where, line, write=complete is None)
        cells = _cells(threads, target, box.box_bytes, line, lanes)
        if complete is not None:
            threads.shared_known[cells] = False
            # What lies outside comes too, as zeros.
            came = np.full(registers.lanes, -box.box_bytes)
            _complete(threads, complete, came, lanes, line)

    return step


def _map_at(threads: Any, address: np.ndarray, line: int) -> TensorMap:
    if (address != address[0]).any():
        raise Undecided(f"line {line}: threads copy by different tensor maps")
    if int(address[0]) not in threads.maps:
        raise IndexError(f"line {line}: no tensor map at {int(address[0])}")
    return threads.maps[int(address[0])]


def _cells(
    threads: Any, address: np.ndarray, size: int, line: int, lanes: np.ndarray
) -> np.ndarray:
    """Where `size` bytes of each of the lanes are in the shared memory of all blocks."""
    first = 16 * in_shared(threads, address, 16, line, lanes)[lanes]
    offset = first - threads.block[lanes]
    if (offset + size > threads.shared_size).any():
        raise IndexError(
            f"line {line}: {size} bytes at {int(offset.max())} of {threads.shared_size} of "
            "shared memory"
        )
    return first[:, None] + np.arange(size)


def _signed(value: np.ndarray, lanes: int) -> np.ndarray:
    return np.broadcast_to(as_integer(value, np.dtype(np.int32)), lanes).astype(np.int64)


def store_bulk(instruction: Instruction) -> Step:
    """`cp.async.bulk [global], [shared], bytes`."""
    if instruction.opcode[3:] != ("global", "shared::cta", "bulk_group"):
        raise NotImplementedError(f"line {instruction.line}: {text_of(instruction)}")
    to, origin, given = instruction.operands
    locate, place, read = location(to), location(origin), operand(given)
    guard, line = guarded(instruction), instruction.line

    def step(threads: Any) -> None:
        registers = threads.registers
        lanes = registers.lanes_of(guard(registers))
        (address, known), (source, source_known) = locate(registers), place(registers)
        width, width_known = read(registers)
        for one in (known, source_known, width_known):
            registers.must_know(one, f"line {line}: address or size", lanes)
        width = np.broadcast_to(as_integer(width, np.dtype(np.uint32)), registers.lanes)
        for size in np.unique(width[lanes]).tolist():
            mine = lanes & (width == size)
            _cells(threads, source, size, line, mine)
            threads.memory.access(address, np.full(1, size), mine, line, write=True)

    return step
