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

from pallas_kernels.lab.calls import COUNTED
from pallas_kernels.lab.interpreted import checks
from pallas_kernels.lab.lowering import ARCHITECTURES, lower_all
from pallas_kernels.lab.programs import HEADS

PAGE_SIZES = (16, 64)
# An H100 runs an H200's code.
TARGETS = ("h200", "a100")
# kernel: the program that it is compiled in, the dtype of the pages, the name of the launch, and
# whether that splits its keys.
KERNELS: dict[str, tuple[str, str, str, bool | None]] = {
    "decode v1": ("decode256", "bfloat16", "paged_attention", None),
    "decode v2": ("mixed", "bfloat16", "paged_attention", True),
    "merge": ("mixed", "bfloat16", "merge_splits", None),
    "prefill": ("mixed", "bfloat16", "paged_attention", False),
    "cascade": ("cascade", "bfloat16", "paged_attention", None),
    "write bfloat16": ("write", "bfloat16", "write_kv", None),
    "copy": ("copy", "bfloat16", "copy_pages", None),
}
# Only at one size.
ONE_BYTE: dict[str, tuple[str, str, str, bool | None]] = {
    "decode v1 int8": ("decode256", "int8", "paged_attention", None),
    "write int8": ("write", "int8", "write_kv", None),
}
# Runs inside another's call.
_PART_OF = {"merge": "decode v2"}


@dataclass(frozen=True)
class Rungs:
    """One kernel at one head size and page size on one target. Empty strings are good.

    interpreted: what was wrong with its answers. lowered: versions of jax. registers: per thread,
    most of its launches. shared_memory: bytes. tensor: instruction of its products. ratio,
    pages_ratio: bytes moved, of what must be, all and of pages. outside: what it touched outside.
    """

    kernel: str
    head_dim: int
    page_size: int
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
    """What other installations found: lists of rows as they stand in the JSON files."""

    lowered: dict[str, list[dict[str, Any]]]
    compiled: list[dict[str, Any]]
    traffic: list[dict[str, Any]]
    planted: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: Path) -> Results:
        """From `lowering.json`, `offline_compile.json`, `traffic.json` and `planted.json`."""

        def load(name: str) -> Any:
            return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))

        return cls(
            load("lowering"),
            load("offline_compile")["rows"],
            load("traffic")["rows"],
            load("planted"),
        )


def add_lowering(folder: Path, backend: str) -> list[str]:
    """Lower everything with this jax, add it to `lowering.json`; what did not lower."""
    import jax

    path = folder / "lowering.json"
    held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found = lower_all(list(TARGETS), backend)
    held[jax.__version__] = [asdict(row) for row in found]
    path.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    return [f"{row.target}, {row.program}: {row.error}" for row in found if row.error]


def interpret(
    backend: str, sizes: Iterable[tuple[int, int]], told: Callable[[str], None] = print
) -> dict[tuple[str, int, int], str]:
    """Rungs (a) and (e) by kernel, head size and page size: what was wrong, empty for nothing."""
    found = {}
    for head_dim, page_size in sizes:
        for check in checks(backend, head_dim, page_size):
            try:
                check.run()
                wrong = ""
            except Exception as error:
                lines = str(error).strip().splitlines() or [""]
                wrong = f"{type(error).__name__}: {lines[0]}"
            found[check.kernel, head_dim, page_size] = wrong
            told(f"{check.kernel} D{head_dim} page{page_size}: {wrong or 'as numpy has it'}")
    return found


def climb(
    interpreted: dict[tuple[str, int, int], str],
    results: Results,
    sizes: Iterable[tuple[int, int]],
) -> Iterator[Rungs]:
    """A row for each kernel, size and target."""
    for head_dim, page_size in sizes:
        kernels = KERNELS | (ONE_BYTE if (head_dim, page_size) == (128, 16) else {})
        for kernel in kernels:
            for target in TARGETS:
                size = (head_dim, page_size)
                yield _row(kernels[kernel], kernel, size, target, interpreted, results)


def _row(
    where: tuple[str, str, str, bool | None],
    kernel: str,
    sizes: tuple[int, int],
    target: str,
    interpreted: dict[tuple[str, int, int], str],
    results: Results,
) -> Rungs:
    kind, dtype, launch, splits = where
    head_dim, page_size = sizes
    size = f"D{head_dim} page{page_size}"
    program = f"{kind} {size} {dtype}"
    whole = _PART_OF.get(kernel, kernel)
    compiled = [
        row
        for row in results.compiled
        if (row["target"], row["program"]) == (target, program)
        and row["kernel"].partition("__")[0] == launch
        and (splits is None or (row["grid"].split(",")[2].strip() != "1") == splits)
    ]
    lowered = tuple(
        version
        for version, rows in results.lowered.items()
        if any(
            (row["target"], row["program"], row["error"]) == (target, program, "") for row in rows
        )
    )
    moved = [
        row
        for row in results.traffic
        if ARCHITECTURES[row["target"]] == ARCHITECTURES[target]
        and row["call"] == f"{whole} {size}"
    ]
    outside = [x for row in moved for x in row["complaints"] if " bytes at " in x]
    wrong = interpreted.get((whole, head_dim, page_size), "not run")
    faults = [f"(a), (e): {wrong}"] if wrong else []
    faults += [
        f"(b): not lowered on jax {version}"
        for version in results.lowered
        if version not in lowered
    ]
    faults += [] if len(results.lowered) > 1 else ["(b): lowered on one version of jax alone"]
    faults += [] if compiled else ["(c): not compiled"]
    for row in compiled:
        faults += [f"(c): {row['spills']} bytes of spills"] if row["spills"] else []
        if launch == "paged_attention" and not ((row["wgmma"] or row["mma"]) and row["async_copy"]):
            faults.append("(c): no tensor cores or no asynchronous copies")
    if head_dim in COUNTED and not moved:
        faults.append("(d): not counted")
    faults += [f"(d): {x}" for row in moved for x in row["complaints"]]
    return Rungs(
        kernel=kernel,
        head_dim=head_dim,
        page_size=page_size,
        target=target,
        interpreted=wrong,
        lowered=lowered,
        registers=max((row["registers"] for row in compiled), default=0),
        spills=sum(row["spills"] for row in compiled),
        shared_memory=max((row["shared_memory"] for row in compiled), default=0),
        occupancy=min((row["occupancy"] for row in compiled), default=0.0),
        tensor=_tensor(compiled),
        async_copies=sum(row["async_copy"] for row in compiled),
        ratio=moved[0]["ratio"] if moved else 0.0,
        pages_ratio=moved[0]["pages_ratio"] if moved else 0.0,
        outside="; ".join(outside),
        faults=tuple(faults),
    )


def _tensor(compiled: list[dict[str, Any]]) -> str:
    names = {"wgmma": "wgmma", "mma": "mma.sync"}
    return " + ".join(name for key, name in names.items() if any(row[key] for row in compiled))


def table(rows: list[Rungs], planted: list[dict[str, Any]]) -> str:
    """Markdown."""
    versions = sorted({version for row in rows for version in row.lowered})
    lines = [
        "Each kernel at each head size and page size, without a GPU. (a): its answers in the "
        "interpreter against numpy. (b): lowered for CUDA by "
        f"jax {' and '.join(versions)}. (c): registers a thread, bytes of spills, KiB of shared "
        "memory, occupancy, tensor-core instruction, asynchronous copies. (d): bytes asked for, as "
        "multiples of what the call must move, all and of pages alone, at two head sizes. (e): "
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
            row.head_dim,
            row.page_size,
            row.target,
            "no" if row.interpreted else "yes",
            f"{len(row.lowered)} of {len(versions)}",
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
        f"{row.kernel} D{row.head_dim} page{row.page_size} {row.target}: {fault}"
        for row in rows
        for fault in row.faults
    ]
    found += [f"({x['rung']}) did not see {x['plant']}" for x in planted if not x["told"]]
    missing = set("abcde") - {x["rung"] for x in planted}
    return found + [f"({rung}) has no planted bug" for rung in sorted(missing)]


def every_size() -> list[tuple[int, int]]:
    """Head sizes and page sizes."""
    return [(head_dim, page_size) for head_dim in HEADS for page_size in PAGE_SIZES]
