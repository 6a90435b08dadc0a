"""`python -m pallas_kernels.lab`: a verdict on a kernel, without a GPU."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax

from pallas_kernels import ragged_paged_attention
from pallas_kernels.lab.battery import CASES, MORE_CASES, PROPERTIES, Attend, check
from pallas_kernels.roofline import tables

_STATIC = ("scale", "window", "softcap", "return_lse", "config")


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand; the exit status is 1 if something failed."""
    parser = argparse.ArgumentParser(prog="python -m pallas_kernels.lab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    verify = commands.add_parser("verify", help="run the battery")
    which = verify.add_mutually_exclusive_group()
    which.add_argument("--kernel", metavar="FILE.py:FUNCTION", help="your own")
    which.add_argument("--backend", default="triton", help="one that is built in")
    verify.add_argument("--more", action="store_true", help="all combinations; takes minutes")
    verify.add_argument("--only", default="", help="part of the names of cases")
    commands.add_parser("roofline", help="what chips could do, on paper")
    args = parser.parse_args(arguments)
    if args.command == "roofline":
        print(tables(), end="")
        return 0
    if args.kernel is not None:
        attend = load(args.kernel)
    else:
        attend = partial(ragged_paged_attention, backend=args.backend)
    return run_battery(attend, more=args.more, only=args.only)


def load(where: str) -> Attend:
    """The function named `path/to/file.py:function`."""
    path, _, name = where.rpartition(":")
    if not Path(path).is_file():
        raise SystemExit(f"--kernel={where!r} must be FILE.py:FUNCTION; there is no file {path!r}")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, name, None)):
        raise SystemExit(f"--kernel={where!r}: {path} has no function {name!r}")
    return getattr(module, name)


def run_battery(attend: Attend, *, more: bool = False, only: str = "") -> int:
    """Run and print each case and property; 1 if one failed."""
    compiled = jax.jit(attend, static_argnames=_STATIC)
    jobs: list[tuple[str, Callable[[], Any]]] = [
        (case.name, partial(check, compiled, case))
        for case in (*CASES, *(MORE_CASES if more else ()))
    ]
    jobs += [(holds.__name__.replace("_", " "), partial(holds, compiled)) for holds in PROPERTIES]
    counts = {"passed": 0, "declined": 0, "failed": 0}
    for name, job in jobs:
        if only not in name:
            continue
        start = time.perf_counter()
        verdict, told = _judge(job)
        counts[verdict] += 1
        print(f"{verdict:8}  {time.perf_counter() - start:5.1f} s  {name}{told}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 1 if counts["failed"] or not counts["passed"] else 0


def _judge(job: Callable[[], Any]) -> tuple[str, str]:
    try:
        job()
    except NotImplementedError as refusal:
        return "declined", f": {refusal}"
    except Exception as error:
        return "failed", "\n    " + "\n    ".join(str(error).strip().splitlines()[:12])
    return "passed", ""


if __name__ == "__main__":
    sys.exit(main())
