"""Runs a kernel's addresses, predicates and branches for many thread blocks at once.

Every register is an array over the threads. Floating-point results are *unknown*, and so is what
comes from memory nobody gave contents for; an address, a predicate of a memory access or a branch
that depends on one is an error, so a count is never a guess. Threads that went different ways are
run lowest address first, which brings them together again where the text does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.kernel_traffic.ptx.bulk import Unbalanced, balanced
from benchmarks.kernel_traffic.ptx.instructions import Step, compiled
from benchmarks.kernel_traffic.ptx.kernel import Kernel
from benchmarks.kernel_traffic.ptx.memory import Array, Fault, Memory
from benchmarks.kernel_traffic.ptx.registers import Registers, Undecided
from benchmarks.kernel_traffic.ptx.tensors import MAP_BYTES, TensorMap, TensorMaps

__all__ = ["Unbalanced", "Undecided", "run"]

# Threads run at a time: as many as make numpy's cost per call small.
_LANES = 1 << 14


@dataclass
class Threads:
    """Thread blocks that run together: what instructions act on.

    shared, shared_known: bytes of all blocks, one after the other. block: where the one of each
    thread begins. shared_size: bytes of each. expected: bytes that are still to come, for each 8
    bytes of shared memory, which may be a barrier. maps: tensor maps by address.
    """

    registers: Registers
    memory: Memory
    shared: np.ndarray
    shared_known: np.ndarray
    block: np.ndarray
    shared_size: int
    expected: np.ndarray
    maps: dict[int, TensorMap] = field(default_factory=dict)


def run(
    kernel: Kernel,
    arrays: Sequence[Array | TensorMaps],
    grid: tuple[int, int, int],
    num_threads: int,
    shared_memory: int,
) -> list[Fault]:
    """Run every thread block; the arrays count what is touched.

    Args:
        arrays: one for each parameter; the same object twice for one array that is two. Tensor maps
            for a parameter that holds them.
        grid: thread blocks along x, y, z. num_threads: of each, along x. shared_memory: bytes.

    Returns:
        Accesses outside the arrays.

    Raises:
        Undecided: something unknown would decide what is accessed.
        Unbalanced: a barrier expects other bytes than come.
        NotImplementedError: an instruction that moves memory in a way not covered.
    """
    if len(arrays) != len(kernel.parameters):
        raise ValueError(
            f"{kernel.name} has {len(kernel.parameters)} parameters, got {len(arrays)} arrays"
        )
    memory = Memory([array for array in arrays if isinstance(array, Array)])
    addresses, maps = _places(kernel.parameters, arrays, memory)
    shared_memory = -(-shared_memory // 16) * 16
    code = [[compiled(instruction, addresses) for instruction in block] for block in kernel.blocks]
    targets = [_target(kernel, index) for index in range(len(kernel.blocks))]
    total = grid[0] * grid[1] * grid[2]
    at_once = max(1, _LANES // num_threads)
    for first in range(0, total, at_once):
        blocks = np.arange(first, min(first + at_once, total))
        threads = _threads(memory, blocks, grid, num_threads, shared_memory)
        threads.maps = maps
        for name, address in addresses.items():
            threads.registers.write(name, np.full(1, address, np.uint64))
        _run(code, targets, threads)
        balanced(threads.expected, shared_memory)
    return memory.faults


def _places(
    names: Sequence[str], arrays: Sequence[Array | TensorMaps], memory: Memory
) -> tuple[dict[str, int], dict[int, TensorMap]]:
    """Addresses of parameters, and tensor maps by theirs, below those of arrays."""
    free, addresses, maps = iter(memory.addresses), {}, {}
    for index, (name, array) in enumerate(zip(names, arrays)):
        if isinstance(array, Array):
            addresses[name] = next(free)
            continue
        addresses[name] = (index + 1) << 20
        for place, one in enumerate(array.maps):
            maps[addresses[name] + place * MAP_BYTES] = one
    return addresses, maps


def _target(kernel: Kernel, index: int) -> int:
    """Where the branch at the end of a block leads; the number of blocks for the end."""
    block = kernel.blocks[index]
    if block and block[-1].kind == "bra":
        return kernel.labels[block[-1].operands[0]]
    return len(kernel.blocks)


def _threads(
    memory: Memory,
    blocks: np.ndarray,
    grid: tuple[int, int, int],
    num_threads: int,
    shared_memory: int,
) -> Threads:
    lanes = len(blocks) * num_threads
    block = np.repeat(blocks, num_threads)
    registers = Registers(lanes)
    special: dict[str, np.ndarray] = {
        "%tid.x": np.tile(np.arange(num_threads), len(blocks)),
        "%ctaid.x": block % grid[0],
        "%ctaid.y": block // grid[0] % grid[1],
        "%ctaid.z": block // (grid[0] * grid[1]),
        "%laneid": np.tile(np.arange(num_threads) % 32, len(blocks)),
    }
    sizes = {"%ntid.x": num_threads, "%ntid.y": 1, "%ntid.z": 1}
    sizes |= {"%nctaid.x": grid[0], "%nctaid.y": grid[1], "%nctaid.z": grid[2]}
    sizes |= {"%tid.y": 0, "%tid.z": 0}
    for name, value in special.items():
        registers.write(name, value.astype(np.uint32))
    for name, size in sizes.items():
        registers.write(name, np.full(1, size, np.uint32))
    return Threads(
        registers=registers,
        memory=memory,
        shared=np.zeros(len(blocks) * shared_memory, np.uint8),
        shared_known=np.zeros(len(blocks) * shared_memory, bool),
        block=np.repeat(np.arange(len(blocks)) * shared_memory, num_threads),
        shared_size=shared_memory,
        expected=np.zeros(len(blocks) * shared_memory // 8, np.int64),
    )


def _run(code: list[list[Step]], targets: list[int], threads: Threads) -> None:
    registers = threads.registers
    at = np.zeros(registers.lanes, np.int64)
    while (here := int(at.min())) < len(code):
        active = at == here
        registers.active = None if active.all() else active
        leaving: np.ndarray | None = None
        for step in code[here]:
            leaving = step(threads)
        jump = active & leaving if leaving is not None else np.zeros(registers.lanes, bool)
        at = np.where(jump, targets[here], np.where(active, here + 1, at))
