"""Bytes that compiled kernels move, counted from their PTX, against the bytes they would have to.

The PTX is run (`ptx/`) with the arguments of a real call: instruction width times predicate
times trip count, nothing from the Python configuration. Accesses outside an array are faults:
entries of the block tables that nobody may read point far outside the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.kernel_traffic import host_code
from benchmarks.kernel_traffic.ideals import Ideal
from benchmarks.kernel_traffic.launches import Launch
from benchmarks.kernel_traffic.ptx import SECTOR, Array, Fault, parse, run

# Of the bytes that a call must move.
MOST = 1.1


@dataclass(frozen=True)
class Code:
    """A compiled kernel: its PTX, and how it is launched.

    shared_memory: bytes. passed: what each parameter is; None for the operands one by one.
    """

    kernel: str
    ptx: str
    grid: tuple[int, int, int]
    threads: int
    shared_memory: int
    passed: tuple[host_code.Passed, ...] | None = None


@dataclass(frozen=True)
class Moved:
    """What one launch moved.

    read, written: bytes, instruction width times lanes whose predicate holds; what lanes of a warp
    ask for together counts once. sectors: the same bytes as memory moves them, 32 at a time.
    pages_read, pages_written: of `read` and `written`, from and into pages.
    """

    kernel: str
    read: int
    written: int
    sectors: int
    pages_read: int
    pages_written: int
    faults: tuple[Fault, ...]


@dataclass(frozen=True)
class Traffic:
    """A call's traffic beside its ideal; bytes. once: of pages touched at least once."""

    moved: tuple[Moved, ...]
    once: int
    ideal: Ideal

    @property
    def bytes(self) -> int:
        return sum(x.read + x.written for x in self.moved)

    @property
    def ratio(self) -> float:
        """Of all bytes."""
        return self.bytes / self.ideal.total

    @property
    def sector_ratio(self) -> float:
        """Of all bytes, as memory moves them."""
        return sum(x.sectors for x in self.moved) / self.ideal.total

    @property
    def pages_ratio(self) -> float:
        """Of the bytes requested from and for pages."""
        moved = sum(x.pages_read + x.pages_written for x in self.moved)
        return moved / (self.ideal.pages + self.ideal.written)

    @property
    def once_ratio(self) -> float:
        """Of the bytes of pages that are touched at all."""
        return self.once / self.ideal.once

    def complaints(self) -> list[str]:
        """What should not be."""
        found = [f"{x.kernel}: {fault}" for x in self.moved for fault in x.faults[:3]]
        for what, ratio in (
            ("all bytes", self.ratio),
            ("bytes of pages", self.pages_ratio),
            ("pages touched", self.once_ratio),
        ):
            if not ratio <= MOST:
                found.append(f"{what} are {ratio:.2f} times the ideal")
            if ratio < 0.99:
                found.append(f"{what} are {ratio:.2f} times the ideal: something is not read")
        return found


def count(
    code: Sequence[Code], launched: Sequence[Launch], pages: Sequence[str], ideal: Ideal
) -> Traffic:
    """Run the PTX of every launch.

    Args:
        pages: names of the operands that are pages or their factors.
    """
    touched: dict[str, np.ndarray] = {}
    moved = [_count(_code_of(launch, code), launch, pages, touched) for launch in launched]
    once = sum(int(sectors.sum()) * SECTOR for sectors in touched.values())
    return Traffic(tuple(moved), once, ideal)


def read_code(ptx: Path, grid: tuple[int, int, int], threads: int, shared_memory: int) -> Code:
    """A kernel's PTX from a dump, and of Mosaic GPU the host code beside it."""
    text = ptx.read_text(encoding="utf-8")
    name, host = parse(text).name, ptx.with_suffix(".mlir-passes.log")
    if not host.exists():
        return Code(name, text, grid, threads, shared_memory)
    passed = host_code.read(host.read_text(encoding="utf-8"))
    name = name.removesuffix("_mosaic_gpu_kernel")
    return Code(name, text, grid, threads, shared_memory, passed)


def _code_of(launch: Launch, code: Sequence[Code]) -> Code:
    """The compiled kernel of a launch: of those with the same name, grids tell them apart."""
    fitting = [
        x
        for x in code
        if x.kernel.partition("__")[0] == launch.kernel
        and x.grid == launch.grid
        and (x.passed or len(parse(x.ptx).parameters) == len(launch.operands))
    ]
    if len({x.ptx.partition(".entry")[2].partition("(")[2] for x in fitting}) != 1:
        names = [(x.kernel, x.grid) for x in code]
        raise ValueError(f"{launch.kernel} with grid {launch.grid} is not one of {names}")
    return fitting[0]


def _count(
    code: Code, launch: Launch, pages: Sequence[str], touched: dict[str, np.ndarray]
) -> Moved:
    made: dict[int, Array] = {}
    for operand in launch.operands:
        made.setdefault(id(operand), Array(operand.name, operand.nbytes, operand.value))
    arrays = [made[id(operand)] for operand in launch.operands]
    parameters = arrays if code.passed is None else host_code.bound(code.passed, arrays)
    faults = run(parse(code.ptx), parameters, code.grid, code.threads, code.shared_memory)
    distinct = list(made.values())
    of_pages = [x for x in distinct if x.name in pages]
    for array in of_pages:
        both = array.reads.touched | array.writes.touched
        touched[array.name] = both | touched.get(array.name, False)
    return Moved(
        kernel=code.kernel,
        read=sum(x.reads.requested for x in distinct),
        written=sum(x.writes.requested for x in distinct),
        sectors=sum(x.reads.bytes + x.writes.bytes for x in distinct),
        pages_read=sum(x.reads.requested for x in of_pages),
        pages_written=sum(x.writes.requested for x in of_pages),
        faults=tuple(faults),
    )
