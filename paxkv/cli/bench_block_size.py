"""`paxkv bench block-size`: the engine at several block sizes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from paxkv.cli.bench_paging import add_output_flags
from paxkv.cli.command_parser import CommandParser
from paxkv.cli.engine_flags import add_engine_flags, engine_arguments

SUMMARY = "throughput, waste and table bytes of the engine by block size"


def add_arguments(parser: CommandParser) -> None:
    parser.usage = "paxkv bench block-size MODEL [options]"
    parser.add_argument(
        "--block-sizes",
        default="4,8,16,32,64,128",
        metavar="N,N,…",
        help="tokens per page (default: %(default)s)",
    )
    parser.add_argument(
        "--workload", type=Path, metavar="FILE", help="JSON lines as for bench throughput"
    )
    parser.add_argument(
        "--num-requests",
        type=int,
        default=16,
        metavar="N",
        help="the first N of the workload, or N made up without one (default: %(default)s)",
    )
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="runs per block size")
    add_output_flags(parser)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    import json

    from rich.console import Console

    from paxkv.bench.block_size import (
        block_size_report,
        block_size_table,
        draw_block_sizes,
        measure_block_size,
    )
    from paxkv.bench.figures import require_matplotlib, write_markdown
    from paxkv.bench.workload import read_workload

    sizes = _sizes(args.block_sizes)
    for name in ("num_requests", "runs"):
        if getattr(args, name) < 1:
            raise ValueError(f"{name} is {getattr(args, name)}, must be at least 1")
    if args.plot is not None:
        require_matplotlib()
    workload = args.num_requests
    if args.workload is not None:
        workload = read_workload(args.workload, args.num_requests)
    runs = []
    for size in sizes:
        print(f"block size {size} …", file=sys.stderr)
        runs.append(
            measure_block_size(args.model, workload, size, args.runs, engine_arguments(args))
        )
    table = block_size_table(runs)
    table.print(Console())
    if args.json is not None:
        args.json.write_text(json.dumps(block_size_report(runs), indent=2) + "\n")
    if args.markdown is not None:
        write_markdown(args.markdown, "Block size", [table])
    if args.plot is not None:
        draw_block_sizes(runs, args.plot)
    return 0


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or not all(1 <= size <= 256 for size in sizes):
        raise ValueError(
            f"block_sizes is {text!r}; it must be integers from 1 to 256, as in 8,16,32"
        )
    return sizes
