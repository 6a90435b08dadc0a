"""Count the bytes that kernels move, from PTX compiled for GPUs that are not there.

Needs the CUDA plugin of jax; `benchmarks/offline_compile.sh` sets it up. The counting itself,
`traffic.py`, needs nothing but numpy.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import jax

from benchmarks.kernel_traffic.calls import COUNTED, CountedCall, calls, matmul_calls, mosaic_calls
from benchmarks.kernel_traffic.launches import launches
from benchmarks.kernel_traffic.traffic import Traffic, count, read_code
from pallas_kernels.lab.lowering import ARCHITECTURES, Program
from pallas_kernels.lab.offline import build, device_of

PAGE_SIZES = (16, 64)


@dataclass(frozen=True)
class TrafficRow:
    """One call on one target; bytes. See `traffic.Traffic` for the ratios."""

    target: str
    call: str
    bytes: int
    ideal: int
    ratio: float
    pages_ratio: float
    once_ratio: float
    sector_ratio: float
    complaints: tuple[str, ...]


def measure(target: str, call: CountedCall, dump: Path) -> Traffic:
    """Compile a call and count."""
    described = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in call.arguments.items()}
    built = build(target, Program(call.name, call.function, described), dump)
    code = [read_code(x.ptx, x.grid, x.threads, x.shared_memory) for x in built]
    launched = launches(call.function, call.arguments, device_of(target))
    return count(code, launched, call.pages, call.ideal(call.arguments, launched))


def row_of(target: str, name: str, traffic: Traffic) -> TrafficRow:
    """For the table."""
    return TrafficRow(
        target=target,
        call=name,
        bytes=traffic.bytes,
        ideal=traffic.ideal.total,
        ratio=round(traffic.ratio, 3),
        pages_ratio=round(traffic.pages_ratio, 3),
        once_ratio=round(traffic.once_ratio, 3),
        sector_ratio=round(traffic.sector_ratio, 3),
        complaints=tuple(traffic.complaints()),
    )


def table(rows: list[TrafficRow]) -> str:
    """Markdown."""
    lines = [
        "Bytes that the compiled kernels ask for, counted from their PTX, as multiples of what the "
        "call must move; then those of pages (or packed weights) alone, those touched at all, and "
        "all bytes in the sectors of 32 that memory moves.",
        "",
        "| target | call | MB | all | pages | touched | in sectors |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        lines.append(
            f"| {row.target} | {row.call} | {row.bytes / 1e6:.2f} | {row.ratio:.3f} | "
            f"{row.pages_ratio:.3f} | {row.once_ratio:.3f} | {row.sector_ratio:.3f} |"
        )
    return "\n".join(lines) + "\n"


def every_call(backend: str) -> Iterator[CountedCall]:
    """At every size."""
    for head_dim, page_size in product(COUNTED, PAGE_SIZES):
        if backend == "mosaic":
            yield from mosaic_calls(head_dim, page_size)
        else:
            yield from calls(backend, head_dim, page_size)
    if backend == "triton":
        yield from matmul_calls(backend)


def main() -> int:
    """Write table and JSON; 1 if a call moves too much or leaves an array."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dump", type=Path, required=True, help="where XLA dumps PTX")
    parser.add_argument("--out", type=Path, required=True, help="file name without suffix")
    parser.add_argument("--targets", nargs="+", default=["h200", "a100"], choices=ARCHITECTURES)
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--only", default="", help="part of the names of calls")
    args = parser.parse_args()
    rows, faults = [], []
    for target, call in product(args.targets, every_call(args.backend)):
        if args.only not in call.name:
            continue
        row = row_of(target, call.name, measure(target, call, args.dump))
        rows.append(row)
        faults += [f"{target}, {call.name}: {told}" for told in row.complaints]
        print(*asdict(row).values(), flush=True)
    heading = f"jax {jax.__version__}, back end {args.backend}\n\n"
    args.out.with_suffix(".md").write_text(heading + table(rows), encoding="utf-8")
    found = {"jax": jax.__version__, "rows": [asdict(row) for row in rows]}
    args.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print("\n".join(faults) or "no call moves more than it must, and none leaves its arrays")
    return 1 if faults or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
