"""`python -m benchmarks.gpu_check`: everything that must be known of a GPU, in eight minutes.

    python -m benchmarks.gpu_check [--out NAME] [--only PART ...] [--dry-run]

Writes NAME.json and NAME.md. With `--dry-run` the same code at tiny sizes on any machine, the
kernels in the interpreter: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.report import goals, table
from benchmarks.gpu_check.sizes import DRY, Sizes

PARTS = ("launches", "device", "numerics", "decode", "prefill", "engine")


def check(sizes: Sizes, parts: tuple[str, ...] = PARTS, dry_run: bool = False) -> dict[str, Any]:
    """Run the parts, each within its budget; one that fails is noted and the others go on."""
    report: dict[str, Any] = {"dry_run": dry_run, "failed": {}, "took": {}}
    begin = time.monotonic()
    for part in PARTS:
        if part not in parts:
            continue
        start = time.monotonic()
        print(f"{part} …", file=sys.stderr, flush=True)
        try:
            report[part] = _part(part, sizes, report, start + sizes.budget[part], dry_run)
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            report["failed"][part] = f"{type(error).__name__}: {lines[0]}"[:400]
        report["took"][part] = time.monotonic() - start
    report["seconds"] = time.monotonic() - begin
    return report


def _part(part: str, sizes: Sizes, report: dict[str, Any], deadline: float, dry_run: bool) -> Any:
    if part == "launches":
        from benchmarks.gpu_check.launches import launches

        return launches(sizes.chain, dry_run, sizes.budget[part])
    from benchmarks.gpu_check import speeds
    from benchmarks.gpu_check.engine_step import engine_step
    from benchmarks.gpu_check.numerics import numerics

    device = report.get("device", {})
    run: dict[str, Callable[[], Any]] = {
        "device": lambda: speeds.device(sizes),
        "numerics": lambda: list(numerics(sizes, deadline)),
        "decode": lambda: list(speeds.decode(sizes, device["copy_bytes_per_second"], deadline)),
        "prefill": lambda: list(speeds.prefill(sizes, device["matmul_flops_per_second"], deadline)),
        "engine": lambda: engine_step(sizes, "triton" if dry_run else "auto"),
    }
    return run[part]()


def main(arguments: list[str] | None = None) -> int:
    """0 if everything ran and every kernel is right."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu_check"), help="without suffix")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--dry-run", action="store_true", help="tiny, in the interpreter")
    args = parser.parse_args(arguments)
    parts = tuple(args.only)
    if {"decode", "prefill"} & set(parts) and "device" not in parts:
        parts += ("device",)
    # The processes that time launches need memory too.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if not args.dry_run:
        import jax

        if jax.default_backend() != "gpu":
            print("there is no GPU here; --dry-run tries the code without one", file=sys.stderr)
            return 2
    report = check(DRY if args.dry_run else Sizes(), parts, args.dry_run)
    report["goals"] = dict(goals(report))
    text = table(report)
    print(text, end="")
    args.out.with_suffix(".md").write_text(text, encoding="utf-8")
    args.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    wrong = [row for row in report.get("numerics", []) if row["verdict"] == "wrong"]
    return 1 if wrong or report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
