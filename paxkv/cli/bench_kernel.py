"""`paxkv bench kernel`: the attention kernels at one step, and tuning them."""

from __future__ import annotations

import argparse
from pathlib import Path

from paxkv.cli.command_parser import CommandParser

SUMMARY = "time the attention kernels at one step, or tune them for it"


def add_arguments(parser: CommandParser) -> None:
    for flag, size, told in (
        ("--batch", 64, "sequences"),
        ("--context", 8192, "cached tokens of each"),
        ("--new", 1, "query tokens of each"),
        ("--heads", 32, "query heads"),
        ("--kv-heads", 8, "key heads"),
        ("--head-dim", 128, "dimensions of a head"),
        ("--page-size", 16, "tokens of a page"),
    ):
        told += " (default: %(default)s)"
        parser.add_argument(flag, type=int, default=size, metavar="N", help=told)
    parser.add_argument("--dtype", default="bfloat16", help="default: %(default)s")
    parser.add_argument(
        "--autotune",
        action="store_true",
        help="find the Triton kernel's fastest tiles for these shapes, keep them",
    )
    parser.add_argument(
        "--cache", type=Path, metavar="FILE", help="where (default: what the kernels read)"
    )
    parser.add_argument(
        "--budget", type=float, default=300.0, metavar="SECONDS", help="default: %(default)s"
    )


def run(args: argparse.Namespace) -> int:
    import jax

    from pallas_kernels import tuned
    from pallas_kernels.lab.bench import Step, bench, table

    step = Step(
        batch=args.batch,
        context=args.context,
        new=args.new,
        heads=args.heads,
        kv_heads=args.kv_heads,
        head_dim=args.head_dim,
        page_size=args.page_size,
        dtype=args.dtype,
    )
    if not args.autotune:
        print(table(step, list(bench(step))), end="")
        return 0
    from pallas_kernels.lab.autotune import autotune

    if args.cache is None and jax.default_backend() == "cpu":
        raise ValueError("autotune needs a GPU; on the CPU the kernels are interpreted")
    path = args.cache or tuned.cache_path()
    if path is None:
        raise ValueError("there is no home directory: set HOME, or give --cache")
    if path.exists() and not path.is_file():
        raise ValueError(f"--cache {path} is no regular file")
    try:
        found = autotune(step, path, budget=args.budget)
    except NotImplementedError as refusal:
        raise ValueError(f"the Triton kernel cannot run this: {refusal}") from None
    print(
        f"{found.config}\n{found.best * 1e6:.1f} µs, by default {found.default * 1e6:.1f} µs, "
        f"{found.tried} tried; kept in {path}"
    )
    return 0
