"""Compile every kernel for GPUs that are not there, and tabulate what the compiler made of each.

Needs what `pallas_kernels.lab.offline` needs; `benchmarks/offline_compile.sh` sets it up.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import jax

from benchmarks.kernel_traffic.programs import programs
from pallas_kernels.lab.lowering import ARCHITECTURES
from pallas_kernels.lab.offline import Row, compile_for, table


def main() -> int:
    """Compile everything for each target, write table and JSON; 1 if something is as it should
    not be.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dump", type=Path, required=True, help="where XLA dumps PTX")
    parser.add_argument("--out", type=Path, required=True, help="file name without suffix")
    parser.add_argument("--targets", nargs="+", default=["h200", "a100"], choices=ARCHITECTURES)
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--only", default="", help="part of the names of programs")
    args = parser.parse_args()
    rows: list[Row] = []
    faults = []
    for target in args.targets:
        for program in programs(args.backend):
            if args.only not in program.name:
                continue
            if ARCHITECTURES[target] == "sm_80" and "float8" in program.name:
                continue
            for row in compile_for(target, program, args.dump):
                rows.append(row)
                faults += [f"{target}, {program.name}, {row.kernel}: {x}" for x in row.faults()]
                print(*asdict(row).values(), flush=True)
    text = f"jax {jax.__version__}, back end {args.backend}\n\n{table(rows)}"
    args.out.with_suffix(".md").write_text(text)
    args.out.with_suffix(".json").write_text(
        json.dumps({"jax": jax.__version__, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"
    )
    print("\n".join(faults) or "no spills; tensor cores and asynchronous copies where intended")
    return 1 if faults or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
