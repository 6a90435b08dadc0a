"""`paxkv bench policies`: the scheduling options on arrivals they are made for, and on others."""

from __future__ import annotations

import argparse

from paxkv.cli.command_parser import CommandParser
from paxkv.cli.result_files import output_file

SUMMARY = "what each scheduling option gains and costs, simulated"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--num-requests", type=int, default=400, metavar="N", help="of each scenario (default: 400)"
    )
    parser.add_argument("--json", type=output_file, metavar="OUT", help="write all figures here")
    parser.add_argument("--markdown", type=output_file, metavar="OUT", help="write the tables here")


def run(args: argparse.Namespace) -> int:
    import json

    from rich.console import Console

    from paxkv.bench.figures import write_markdown
    from paxkv.bench.policies import policy_tables, run_policies

    report = run_policies(args.num_requests)
    tables = policy_tables(report)
    for table in tables:
        table.print(Console())
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    if args.markdown is not None:
        write_markdown(args.markdown, "Scheduling options, simulated", tables)
    return 0
