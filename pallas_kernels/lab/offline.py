"""Compile the kernels for GPUs that are not there, and tabulate what the compiler made of each.

Needs the CUDA plugin of jax, `ptxas` and `cuobjdump`; `benchmarks/offline_compile.sh` sets all of
it up. Shows that a kernel compiles, its registers, spills, shared memory and instructions. Shows
nothing about execution, races or speed.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from pallas_kernels.lab.lowering import ARCHITECTURES, Program

TARGETS = Path(__file__).parent / "targets"
KERNELS = ("paged_attention", "merge_splits", "write_kv", "copy_pages", "quantized_matmul")
# Those that multiply matrices.
PRODUCTS = ("paged_attention", "quantized_matmul", "mosaic_attention")
# SASS instructions, by what they show.
INSTRUCTIONS = {
    "wgmma": r"\bHGMMA\b",
    "mma": r"\bHMMA\b",
    "async_copy": r"\bLDGSTS\b",
    "tma_load": r"\bUTMALDG\b",
}


@dataclass(frozen=True)
class Row:
    """One kernel of one program on one target.

    registers: per thread. spills: bytes stored and loaded. shared_memory: bytes per program.
    occupancy: warps that fit a multiprocessor, of the most it holds.
    """

    target: str
    program: str
    kernel: str
    grid: str
    threads: int
    registers: int
    spills: int
    shared_memory: int
    occupancy: float
    wgmma: int
    mma: int
    async_copy: int
    tma_load: int

    def faults(self) -> list[str]:
        """What should not be."""
        found = []
        if self.spills:
            found.append(f"{self.spills} bytes of spills")
        if self.kernel.startswith(PRODUCTS) and not (self.wgmma or self.mma):
            found.append("no tensor-core instruction")
        if self.kernel.startswith(PRODUCTS) and not (self.async_copy or self.tma_load):
            found.append("no asynchronous copy")
        return found


def compile_for(
    target: str,
    program: Program,
    dump: Path,
    kernels: tuple[str, ...] = KERNELS,
    options: dict[str, Any] | None = None,
) -> list[Row]:
    """Compile one program and look at what came out; see `build`."""
    description = description_of(target)
    built = build(target, program, dump, kernels, options)
    rows = []
    for kernel in built:
        registers, spills, sass = _assemble(kernel.ptx, ARCHITECTURES[target])
        counts = {what: len(re.findall(regex, sass)) for what, regex in INSTRUCTIONS.items()}
        rows.append(
            Row(
                target=target,
                program=program.name,
                kernel=kernel.name,
                grid=", ".join(map(str, kernel.grid)),
                threads=kernel.threads,
                registers=registers,
                spills=spills,
                shared_memory=kernel.shared_memory,
                occupancy=_occupancy(description, registers, kernel.threads, kernel.shared_memory),
                **counts,
            )
        )
    return rows


@dataclass(frozen=True)
class Built:
    """A compiled kernel and its launch. ptx: the file. shared_memory: bytes."""

    name: str
    ptx: Path
    grid: tuple[int, int, int]
    threads: int
    shared_memory: int


def description_of(target: str) -> str:
    """What XLA must know of a chip that is not there."""
    return (TARGETS / f"{target}.txtpb").read_text()


def device_of(target: str) -> jax.sharding.AbstractDevice:
    """What tracing must know of it."""
    kind = _topology(target).devices[0].device_kind
    return jax.sharding.AbstractDevice(kind, 1, "cuda")


@lru_cache
def _topology(target: str) -> Any:
    return topologies.get_topology_desc(
        platform="cuda", target_config=description_of(target), topology="1x1x1"
    )


def build(
    target: str,
    program: Program,
    dump: Path,
    kernels: tuple[str, ...] = KERNELS,
    options: dict[str, Any] | None = None,
) -> list[Built]:
    """Compile one program ahead of time; XLA and Mosaic GPU must be told to dump to `dump`.

    kernels: how the names begin of those that are wanted; `("",)` for XLA's own too. options: of
    the compiler, where the dump is not told by XLA_FLAGS.
    """
    topology = _topology(target)
    sharding = NamedSharding(topologies.make_mesh(topology, (1,), ("x",)), PartitionSpec())
    device = device_of(target)
    arguments = {
        name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
        for name, x in program.arguments.items()
    }
    name = re.sub(r"\W+", "_", f"{target} {program.name}")
    program.function.__name__ = name
    donated = [x for x in ("k_pages", "v_pages", "pages") if x in arguments]
    writes = "block_tables" not in arguments
    for old in dump.glob("mosaic_attention_*"):
        old.unlink()
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device)):
        function = jax.jit(program.function, donate_argnames=donated if writes else ())
        function.trace(**arguments).lower(lowering_platforms=("cuda",)).compile(options)
    (thunks,) = dump.glob(f"*.jit_{name}.thunk_sequence.txt")
    launches = _launches(thunks.read_text())
    found = []
    for ptx in sorted(dump.glob(f"*.jit_{name}.*.ptx")):
        entry = re.search(r"\.entry (\w+)", ptx.read_text())
        if entry is None or not entry.group(1).startswith(kernels):
            continue
        grid, threads, shared = launches[entry.group(1)]
        x, y, z = (int(size) for size in grid.split(","))
        found.append(Built(entry.group(1), ptx, (x, y, z), threads, shared))
    # XLA's order is not the same twice.
    return sorted(found, key=lambda kernel: kernel.name) + _mosaic_kernels(dump)


def _mosaic_kernels(dump: Path) -> list[Built]:
    """What Mosaic GPU dumped; it counts its kernels throughout the process."""
    three = r"\(%c(\d+)\w*, %c(\d+)\w*, %c(\d+)\w*\)"
    launch = rf"gpu\.launch_func.* blocks in {three} threads in {three}\s+"
    launch += r"dynamic_shared_memory_size %c(\d+)"
    found = []
    dumped = sorted(dump.glob("mosaic_attention_*.ptx"), key=lambda ptx: (len(ptx.stem), ptx.stem))
    for number, ptx in enumerate(dumped):
        match = re.search(launch, ptx.with_suffix(".mlir-passes.log").read_text())
        assert match is not None, ptx
        x, y, z, threads, _, _, shared = (int(size) for size in match.groups())
        name = f"mosaic_attention__{number}" if number else "mosaic_attention"
        found.append(Built(name, ptx, (x, y, z), threads, shared))
    return found


def _launches(thunks: str) -> dict[str, tuple[str, int, int]]:
    """Grid, threads and bytes of shared memory of each kernel launch."""
    pattern = r"(\w+) grid: \[([\d, ]+)\] threads: \[(\d+)[\d, ]*\]\s+shared_memory: (\d+)"
    return {
        name: (grid, int(threads), int(shared))
        for name, grid, threads, shared in re.findall(pattern, thunks)
    }


def _assemble(ptx: Path, architecture: str) -> tuple[int, int, str]:
    """Registers per thread, bytes of spills, and SASS."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        told = subprocess.run(
            ["ptxas", "-v", f"-arch={architecture}", str(ptx), "-o", cubin.name],
            check=True,
            capture_output=True,
            text=True,
        ).stderr
        sass = subprocess.run(
            ["cuobjdump", "-sass", cubin.name], check=True, capture_output=True, text=True
        ).stdout
    registers = max(int(n) for n in re.findall(r"Used (\d+) registers", told))
    spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill", told))
    return registers, spills, sass


def _occupancy(description: str, registers: int, threads: int, shared: int) -> float:
    """Warps of a multiprocessor that are in use (CUDA occupancy calculator's rules)."""

    def limit(name: str) -> int:
        found = re.search(rf"{name}: (\d+)", description)
        assert found is not None, name
        return int(found.group(1))

    warps = threads // 32
    # Registers are given out 256 at a time to each warp; a block of shared memory costs 1 KiB more.
    by_registers = limit("registers_per_core_limit") // (-(-registers * 32 // 256) * 256 * warps)
    by_shared = limit("shared_memory_per_core") // (shared + 1024)
    by_threads = limit("threads_per_core_limit") // threads
    return min(by_registers, by_shared, by_threads) * threads / limit("threads_per_core_limit")


def table(rows: list[Row]) -> str:
    """Markdown."""
    heads = ("target", "program", "kernel", "registers", "spills", "shared memory", "occupancy")
    lines = [
        "| " + " | ".join((*heads, "wgmma", "mma.sync", "async copies", "TMA loads")) + " |",
        "| " + " | ".join(["---"] * (len(heads) + 4)) + " |",
    ]
    for row in rows:
        cells: tuple[Any, ...] = (
            row.target,
            row.program,
            row.kernel,
            row.registers,
            row.spills,
            row.shared_memory,
            f"{row.occupancy:.0%}",
            row.wgmma,
            row.mma,
            row.async_copy,
            row.tma_load,
        )
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"
