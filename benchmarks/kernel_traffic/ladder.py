"""The ladder: what is known of each kernel without a GPU, rung by rung.

(a) the interpreter's answers against numpy, (b) lowering for CUDA on several versions of jax, (c)
what the compiler made of it, (d) the bytes that it moves, (e) whether it stays inside its arrays.
(a) and (e) are run here; the others need other installations, which
`benchmarks/offline_compile.sh` makes, and are read from the results that it leaves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.kernel_traffic.calls import COUNTED
from benchmarks.kernel_traffic.interpreted import Check, checks, matmul_checks, mosaic_checks
from benchmarks.kernel_traffic.programs import HEADS, programs
from pallas_kernels.lab.lowering import ARCHITECTURES, Lowered, lower
from pallas_kernels.lab.offline import Row
from pallas_kernels.mosaic import HEAD_DIMS as MOSAIC_HEAD_DIMS

# Head size and page size; None for a kernel that knows neither.
Size = tuple[int, int] | None

PAGE_SIZES = (16, 64)
# An H100 runs an H200's code.
TARGETS = ("h200", "a100")
BACKENDS = ("triton", "mosaic")


def label(size: Size) -> str:
    """As names of programs and calls have it."""
    return "" if size is None else f"D{size[0]} page{size[1]}"


def _sizes(head_dims: Iterable[int]) -> tuple[Size, ...]:
    return tuple((head_dim, page_size) for head_dim in head_dims for page_size in PAGE_SIZES)


@dataclass(frozen=True)
class Kernel:
    """A row of the ladder for each size and target.

    program: what it is compiled in; `{}` stands for the size. launch: its name there. splits:
    whether that launch splits its keys; None for any. checked_as: the call whose answers and
    bytes are looked at, where it is a part of one.
    """

    name: str
    program: str
    launch: str
    splits: bool | None = None
    checked_as: str = ""
    backend: str = "triton"
    sizes: tuple[Size, ...] = _sizes(HEADS)
    targets: tuple[str, ...] = TARGETS

    @property
    def call(self) -> str:
        return self.checked_as or self.name

    def is_counted(self, size: Size) -> bool:
        """At that size."""
        return size is None or size[0] in COUNTED


_ONE: tuple[Size, ...] = ((128, 16),)
_MOSAIC: dict[str, Any] = {
    "launch": "mosaic_attention",
    "backend": "mosaic",
    "sizes": _sizes(MOSAIC_HEAD_DIMS),
    "targets": ("h200",),
}
KERNELS = (
    Kernel("decode v1", "decode256 {} bfloat16", "paged_attention"),
    Kernel("decode v2", "mixed {} bfloat16", "paged_attention", splits=True),
    Kernel("merge", "mixed {} bfloat16", "merge_splits", checked_as="decode v2"),
    Kernel("prefill", "mixed {} bfloat16", "paged_attention", splits=False),
    Kernel("cascade", "cascade {} bfloat16", "paged_attention"),
    Kernel("write bfloat16", "write {} bfloat16", "write_kv"),
    Kernel("copy", "copy {} bfloat16", "copy_pages"),
    Kernel("decode v1 int8", "decode256 {} int8", "paged_attention", sizes=_ONE),
    Kernel("write int8", "write {} int8", "write_kv", sizes=_ONE),
    Kernel("matmul w4a16", "matmul w4a16 16 tokens", "quantized_matmul", sizes=(None,)),
    Kernel("matmul w8a16", "matmul w8a16 16 tokens", "quantized_matmul", sizes=(None,)),
    Kernel("mosaic decode v1", "decode256 {} bfloat16", **_MOSAIC),
    Kernel("mosaic decode v2", "few {} bfloat16", splits=True, **_MOSAIC),
    Kernel("mosaic prefill", "mixed {} bfloat16", splits=False, **_MOSAIC),
)


@dataclass(frozen=True)
class Rungs:
    """One kernel at one size on one target. Empty strings are good.

    interpreted: what was wrong with its answers. lowered: versions of jax. registers: per thread,
    most of its launches. shared_memory: bytes. tensor: instruction of its products. ratio,
    pages_ratio: bytes moved, of what must be, all and of pages. outside: what it touched outside.
    """

    kernel: str
    size: Size
    target: str
    interpreted: str
    lowered: tuple[str, ...]
    registers: int
    spills: int
    shared_memory: int
    occupancy: float
    tensor: str
    async_copies: int
    ratio: float
    pages_ratio: float
    outside: str
    faults: tuple[str, ...]


@dataclass(frozen=True)
class Results:
    """What other installations found, as rows of JSON; of each back end where it says so."""

    lowered: dict[str, dict[str, list[dict[str, Any]]]]
    compiled: dict[str, list[dict[str, Any]]]
    traffic: list[dict[str, Any]]
    planted: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> Results:
        """From the files of `benchmarks/offline_compile.sh`."""

        def load(name: str) -> Any:
            return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))

        return cls(
            {backend: load(_file("lowering", backend)) for backend in BACKENDS},
            {backend: load(_file("offline_compile", backend))["rows"] for backend in BACKENDS},
            [row for backend in BACKENDS for row in load(_file("traffic", backend))["rows"]],
            load("planted"),
        )


def _file(what: str, backend: str) -> str:
    return what if backend == "triton" else f"{what}_{backend}"


def add_lowering(folder: Path, backend: str) -> list[str]:
    """Lower everything with this jax, add it to `lowering.json`; what did not lower."""
    import jax

    path = folder / f"{_file('lowering', backend)}.json"
    held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    targets = sorted({x for kernel in KERNELS if kernel.backend == backend for x in kernel.targets})
    found = lower_all(targets, backend)
    held[jax.__version__] = [asdict(row) for row in found]
    path.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    return [f"{row.target}, {row.program}: {row.error}" for row in found if row.error]


def lower_all(targets: list[str], backend: str, only: str = "") -> list[Lowered]:
    """All programs but those with a page type that the target has not."""
    return [
        lower(target, program)
        for target in targets
        for program in programs(backend)
        if only in program.name and not (target == "a100" and "float8" in program.name)
    ]


Answers = dict[tuple[str, Size], str]


def checks_at(size: Size) -> Iterator[Check]:
    """What is run in the interpreter at one size."""
    if size is None:
        yield from matmul_checks()
        return
    yield from checks("triton", *size)
    if size[0] in MOSAIC_HEAD_DIMS:
        yield from mosaic_checks(*size)


def interpret(sizes: Iterable[Size], told: Callable[[str], None] = print) -> Answers:
    """Rungs (a) and (e) by kernel and size: what was wrong, empty for nothing."""
    found = {}
    for size in sizes:
        for check in checks_at(size):
            try:
                check.run()
                wrong = ""
            except Exception as error:
                lines = str(error).strip().splitlines() or [""]
                wrong = f"{type(error).__name__}: {lines[0]}"
            found[check.kernel, size] = wrong
            told(f"{check.kernel} {label(size)}: {wrong or 'as numpy has it'}")
    return found


def climb(answers: Answers, results: Results, sizes: Iterable[Size]) -> Iterator[Rungs]:
    """A row for each kernel, size and target."""
    for size in sizes:
        for kernel in KERNELS:
            if size in kernel.sizes:
                for target in kernel.targets:
                    yield _row(kernel, size, target, answers, results)


def _row(kernel: Kernel, size: Size, target: str, answers: Answers, results: Results) -> Rungs:
    program = kernel.program.format(label(size))
    compiled = [
        row
        for row in results.compiled[kernel.backend]
        if (row["target"], row["program"]) == (target, program)
        and row["kernel"].partition("__")[0] == kernel.launch
        and kernel.splits in (None, row["grid"].split(",")[2].strip() != "1")
    ]
    versions = results.lowered[kernel.backend]
    lowered = tuple(
        version
        for version, rows in versions.items()
        if any(
            (row["target"], row["program"], row["error"]) == (target, program, "") for row in rows
        )
    )
    moved = [
        row
        for row in results.traffic
        if ARCHITECTURES[row["target"]] == ARCHITECTURES[target]
        and row["call"] == f"{kernel.call} {label(size)}".strip()
    ]
    outside = [x for row in moved for x in row["complaints"] if " bytes at " in x]
    wrong = answers.get((kernel.call, size), "not run")
    faults = [f"(a), (e): {wrong}"] if wrong else []
    faults += [f"(b): not lowered on jax {x}" for x in versions if x not in lowered]
    faults += [] if len(versions) > 1 else ["(b): lowered on one version of jax alone"]
    faults += [] if compiled else ["(c): not compiled"]
    for row in compiled:
        faults += [f"(c): {fault}" for fault in Row(**row).faults()]
    if kernel.is_counted(size) and not moved:
        faults.append("(d): not counted")
    faults += [f"(d): {x}" for row in moved for x in row["complaints"]]
    return Rungs(
        kernel=kernel.name,
        size=size,
        target=target,
        interpreted=wrong,
        lowered=lowered,
        registers=max((row["registers"] for row in compiled), default=0),
        spills=sum(row["spills"] for row in compiled),
        shared_memory=max((row["shared_memory"] for row in compiled), default=0),
        occupancy=min((row["occupancy"] for row in compiled), default=0.0),
        tensor=_tensor(compiled),
        async_copies=sum(map(_copies, compiled)),
        ratio=moved[0]["ratio"] if moved else 0.0,
        pages_ratio=moved[0]["pages_ratio"] if moved else 0.0,
        outside="; ".join(outside),
        faults=tuple(faults),
    )


def _copies(row: dict[str, Any]) -> int:
    return int(row["async_copy"] + row["tma_load"])


def _tensor(compiled: list[dict[str, Any]]) -> str:
    names = {"wgmma": "wgmma", "mma": "mma.sync"}
    return " + ".join(name for key, name in names.items() if any(row[key] for row in compiled))


def table(rows: list[Rungs], planted: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "Each kernel at each head size and page size, without a GPU. (a): its answers in the "
        "interpreter against numpy. (b): versions of jax that lower it for CUDA. (c): registers a "
        "thread, bytes of spills, KiB of shared memory, occupancy, tensor-core instruction, "
        "asynchronous copies. (d): bytes asked for, as multiples of what the call must move, all "
        "and of pages (or packed weights) alone, at two head sizes. (e): "
        "inside its arrays, in the interpreter between guard pages and in PTX. Nothing here ran "
        "on a GPU.",
        "",
        "| kernel | head | page | target | a | b | registers | spills | KiB | occupancy "
        "| products | copies | d | pages | e |",
        "| --- " * 15 + "|",
    ]
    for row in rows:
        cells = (
            row.kernel,
            *(row.size or ("–", "–")),
            row.target,
            "no" if row.interpreted else "yes",
            ", ".join(row.lowered) or "none",
            row.registers,
            row.spills,
            round(row.shared_memory / 1024, 1),
            f"{row.occupancy:.0%}",
            row.tensor or "–",
            row.async_copies or "–",
            f"{row.ratio:.3f}" if row.ratio else "–",
            f"{row.pages_ratio:.3f}" if row.ratio else "–",
            "no" if row.outside or row.interpreted else "yes",
        )
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    lines += ["", "Bugs planted on purpose, and what the rung that must see each said:", ""]
    lines += [f"- ({x['rung']}) {x['plant']}: {x['told'] or 'NOTHING'}" for x in planted]
    return "\n".join(lines) + "\n"


def complaints(rows: list[Rungs], planted: list[dict[str, Any]]) -> list[str]:
    """What should not be."""
    found = [
        " ".join(filter(None, (row.kernel, label(row.size), row.target))) + f": {fault}"
        for row in rows
        for fault in row.faults
    ]
    found += [f"({x['rung']}) did not see {x['plant']}" for x in planted if not x["told"]]
    missing = set("abcde") - {x["rung"] for x in planted}
    return found + [f"({rung}) has no planted bug" for rung in sorted(missing)]


def every_size() -> list[Size]:
    """Of all kernels."""
    return list(dict.fromkeys(size for kernel in KERNELS for size in kernel.sizes))
