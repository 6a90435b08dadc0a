"""`paxkv bench prefix`: the hit rate of a trace of prompts."""

from __future__ import annotations

import argparse

from paxkv.cli.command_parser import CommandParser, add_model_argument
from paxkv.cli.result_files import output_file

SUMMARY = "hit rate of the prefix cache on prompts, and what variable text placed early costs"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--trace",
        required=True,
        metavar="FILE|synthetic",
        help="a workload file (JSON lines with prompt_token_ids, or prompt and --model), or "
        "synthetic: 100 prompts with a system prompt of 500 tokens behind 8 variable ones",
    )
    add_model_argument(parser, "whose tokenizer reads text prompts", required=False)
    parser.add_argument("--block-size", type=int, default=16, metavar="N", help="default: 16")
    parser.add_argument(
        "--num-blocks", type=int, metavar="N", help="pages of the pool (default: enough for all)"
    )
    parser.add_argument("--json", type=output_file, metavar="OUT", help="write all figures here")


def run(args: argparse.Namespace) -> int:
    import json

    from rich.console import Console

    from paxkv.bench.prefix import prefix_tables, run_prefix
    from paxkv.bench.prompts import read_prompts, synthetic_prompts

    for name in ("block_size", "num_blocks"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}, must be at least 1")
    if args.trace == "synthetic":
        prompts = synthetic_prompts()
    else:
        prompts = read_prompts(args.trace, args.model)
    report = run_prefix(prompts, args.block_size, args.num_blocks)
    for table in prefix_tables(report):
        table.print(Console())
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0
