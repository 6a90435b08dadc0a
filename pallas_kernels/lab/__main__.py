"""`python -m pallas_kernels.lab`: a verdict on a kernel, without a GPU."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax

from pallas_kernels import ragged_paged_attention
from pallas_kernels.custom import load
from pallas_kernels.lab.battery import CASES, MORE_CASES, PROPERTIES, Attend, check
from pallas_kernels.lab.bench import Step, bench, chip_named
from pallas_kernels.lab.bench import table as bench_table
from pallas_kernels.lab.compilation import compile_kernel
from pallas_kernels.lab.picture import draw, floors, timed
from pallas_kernels.roofline import tables

T = TypeVar("T")

_STATIC = ("scale", "window", "softcap", "return_lse", "config")


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand; the exit status is 1 if something failed."""
    parser = argparse.ArgumentParser(prog="python -m pallas_kernels.lab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    verify = commands.add_parser("verify", help="run the battery")
    bench = commands.add_parser("bench", help="time it beside every back end and JAX's own kernel")
    compiled = commands.add_parser("compile", help="lower it, and compile it for a GPU not there")
    for command in (verify, bench, compiled):
        which = command.add_mutually_exclusive_group()
        which.add_argument("--kernel", metavar="FILE.py:FUNCTION", help="your own")
        if command is not bench:
            which.add_argument("--backend", default="triton", help="one that is built in")
    for command in (bench, compiled):
        command.add_argument("--arch", default="h200", help="the chip (default: %(default)s)")
        for size in fields(Step):
            flag = f"--{size.name.replace('_', '-')}"
            kind = type(size.default)
            told = "default: %(default)s"
            command.add_argument(flag, type=kind, default=size.default, metavar="N", help=told)
    verify.add_argument("--more", action="store_true", help="all combinations; takes minutes")
    verify.add_argument("--only", default="", help="part of the names of cases")
    roofline = commands.add_parser("roofline", help="what chips could do, on paper")
    roofline.add_argument("--arch", default="h200", help="of --plot (default: %(default)s)")
    for command in (bench, roofline):
        command.add_argument("--plot", type=Path, metavar="FILE", help="draw it; needs matplotlib")
    args = parser.parse_args(arguments)
    if args.command in ("bench", "compile"):
        return _of_a_step(args)
    if args.command == "roofline":
        print(tables(), end="")
        if args.plot is not None:
            chip = _checked(partial(chip_named, args.arch))
            _checked(partial(draw, args.plot, chip, floors(chip)))
        return 0
    return run_battery(_attend(args), more=args.more, only=args.only)


def _attend(args: argparse.Namespace) -> Attend:
    if args.kernel is not None:
        return _checked(partial(load, args.kernel, "--kernel"))
    return partial(ragged_paged_attention, backend=args.backend)


def _of_a_step(args: argparse.Namespace) -> int:
    step = _checked(lambda: Step(**{size.name: getattr(args, size.name) for size in fields(Step)}))
    chip = _checked(partial(chip_named, args.arch))
    if args.command == "compile":
        return compile_kernel(_attend(args), step, args.arch.lower())
    kernel = None if args.kernel is None else _attend(args)
    entries = list(bench(step, kernel, args.kernel or ""))
    print(bench_table(step, entries, chip), end="")
    if args.plot is not None:
        best = floors(chip, {"this step": step})
        _checked(partial(draw, args.plot, chip, best, timed(step, entries)))
    return 0 if any(entry.timing is not None for entry in entries) else 1


def _checked(make: Callable[[], T]) -> T:
    """What `make` returns; a ValueError ends the program with its sentence."""
    try:
        return make()
    except ValueError as error:
        raise SystemExit(str(error)) from None


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
