"""Bytes that compiled kernels move, counted from their PTX, against the bytes they would have to.

The PTX is run (`lab/ptx`) with the arguments of a real call: instruction width times predicate
times trip count, nothing from the Python configuration. Accesses outside an array are faults:
entries of the block tables that nobody may read point far outside the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pallas_kernels.lab.launches import Launch
from pallas_kernels.lab.ptx import SECTOR, Array, Fault, parse, run

# Of the bytes that a call must move.
MOST = 1.1


@dataclass(frozen=True)
class Code:
    """A compiled kernel: its PTX, and how it is launched. shared_memory: bytes."""

    kernel: str
    ptx: str
    grid: tuple[int, int, int]
    threads: int
    shared_memory: int


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
class Ideal:
    """What a call must move, in bytes.

    total: everything. pages: read from pages by programs that each read what their queries see,
    once. once: of pages, at least once whoever reads it. written: into pages.
    """

    total: int
    pages: int
    once: int
    written: int = 0


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
    """A kernel's PTX from a dump."""
    text = ptx.read_text(encoding="utf-8")
    return Code(parse(text).name, text, grid, threads, shared_memory)


def _code_of(launch: Launch, code: Sequence[Code]) -> Code:
    """The compiled kernel of a launch: of those with the same name, grids tell them apart."""
    fitting = [
        x
        for x in code
        if x.kernel.partition("__")[0] == launch.kernel
        and x.grid == launch.grid
        and len(parse(x.ptx).parameters) == len(launch.operands)
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
    faults = run(parse(code.ptx), arrays, code.grid, code.threads, code.shared_memory)
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


def attention_ideal(
    arguments: dict[str, np.ndarray], launched: Sequence[Launch], window: int | None = None
) -> Ideal:
    """What attention over pages must move.

    Programs are as the launches have them: how many tokens share one is in their tile tables, how
    many share the keys of a tile in their grids.
    """
    lengths, starts = arguments["kv_lens"], arguments["query_start"]
    page_size = arguments["k_pages"].shape[2]
    counts = np.diff(starts)
    attention = [x for x in launched if x.kernel == "paged_attention"]
    shared = max(int(_tiles(x)[:, 2].max()) for x in attention)
    keys = once = cells = 0
    for length, new in zip(lengths.tolist(), counts.tolist()):
        per_tile = 1 if new == 1 else shared
        for first in range(length - new, length, per_tile):
            end = min(first + per_tile, length)
            begin = 0 if window is None else max(0, first - window + 1)
            keys += end - begin
            cells += -(-end // page_size) - begin // page_size
        if new:
            once += length - (0 if window is None else max(0, length - new - window + 1))
    return _ideal(arguments, attention, keys, once, cells)


def cascade_ideal(arguments: dict[str, np.ndarray], launched: Sequence[Launch]) -> Ideal:
    """What attention with a shared prefix must move: the prefix once for each tile of all queries,
    the rest for each sequence of one query.
    """
    shared, page_size = int(arguments["shared_len"]), arguments["k_pages"].shape[2]
    attention = [x for x in launched if x.kernel == "paged_attention"]
    prefixes = -(-len(arguments["q"]) // int(_tiles(attention[0])[:, 2].max()))
    rest = int((arguments["kv_lens"] - shared).sum())
    keys = prefixes * shared + rest
    return _ideal(arguments, attention, keys, shared + rest, keys // page_size)


def _ideal(
    arguments: dict[str, np.ndarray], attention: list[Launch], keys: int, once: int, cells: int
) -> Ideal:
    k_pages, q = arguments["k_pages"], arguments["q"]
    _, kv_heads, _, head_dim = k_pages.shape
    num_tokens, heads, _ = q.shape
    per_key = 2 * kv_heads * head_dim * k_pages.dtype.itemsize
    if "k_scale" in arguments:
        per_key += 2 * kv_heads * 4
    # Each launch reads its queries and writes its part of the results.
    row = heads * head_dim * q.dtype.itemsize
    total = keys * per_key + 4 * cells + num_tokens * (2 * row + 4 * heads)
    for launch in attention:
        splits = launch.grid[2]
        if splits > 1:
            # Float32 partial results and their log-sum-exps, written and read.
            total += 2 * splits * int(_tiles(launch)[:, 2].sum()) * heads * (head_dim + 1) * 4
    return Ideal(total, keys * per_key, once * per_key)


def _tiles(launch: Launch) -> np.ndarray:
    """`[num_tiles, 4]`: sequence, first token, tokens, position of the first."""
    found = next(x for x in launch.operands if x.value is not None and x.value.shape[1:] == (4,))
    assert found.value is not None
    return found.value


def write_ideal(arguments: dict[str, np.ndarray]) -> Ideal:
    """New keys and values read, and written into pages."""
    k, pages = arguments["k"], arguments["k_pages"]
    page_size = pages.shape[2]
    written = int((arguments["slot_mapping"] >= page_size).sum())
    rows = 2 * written * k.shape[1]
    stored = rows * (k.shape[2] * pages.dtype.itemsize + (4 if "k_scale" in arguments else 0))
    read = rows * k.shape[2] * k.dtype.itemsize
    return Ideal(read + stored + k.shape[0] * 4, 0, stored, stored)


def copy_ideal(arguments: dict[str, np.ndarray]) -> Ideal:
    """Pages read, and written elsewhere."""
    pages, pairs = arguments["pages"], int(arguments["count"])
    size = pairs * int(np.prod(pages.shape[1:])) * pages.dtype.itemsize
    return Ideal(2 * size, size, 2 * size, size)


def matmul_ideal(arguments: dict[str, np.ndarray], launched: Sequence[Launch]) -> Ideal:
    """What a product with packed weights must move: each program its weights and its tokens, and
    the sums of each share of the inputs.
    """
    (launch,) = launched
    output_tiles, token_tiles, _ = launch.grid
    packed, x = arguments["packed"], arguments["x"]
    weights = sum(arguments[name].nbytes for name in ("packed", "scale", "zero"))
    out = launch.operands[-1].nbytes
    total = weights * token_tiles + x.nbytes * output_tiles + out
    return Ideal(total, packed.nbytes * token_tiles, packed.nbytes)
