"""`paxkv bench paging`: four allocators on one trace."""

from __future__ import annotations

import argparse

from paxkv.cli.command_parser import CommandParser, add_model_argument
from paxkv.cli.result_files import output_file, picture_file

SUMMARY = "what paging saves: four allocators on a trace of lengths, simulated or on the engine"


def add_arguments(parser: CommandParser) -> None:
    from paxkv.bench.paging.job import PagingJob
    from paxkv.cli.dataclass_flags import add_dataclass_flags

    parser.add_argument(
        "--trace",
        required=True,
        metavar="FILE|synthetic",
        help="JSON lines with prompt_len and output_len, a workload file, or the synthetic mixes",
    )
    parser.add_argument(
        "--real",
        action="store_true",
        help="run --model on the engine itself, with allocation contiguous and paged in the same "
        "memory, four times --max-model-len",
    )
    add_model_argument(parser, "for --real, as in paxkv generate", required=False)
    add_dataclass_flags(parser, PagingJob, "simulation", skip=("trace",))
    parser.add_argument(
        "--sharing",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also what sharing saves: parallel sampling, beams, a system prompt",
    )
    add_output_flags(parser)


def add_output_flags(parser: CommandParser) -> None:
    parser.add_argument("--json", type=output_file, metavar="OUT", help="write all figures here")
    parser.add_argument("--markdown", type=output_file, metavar="OUT", help="write the tables here")
    parser.add_argument(
        "--plot",
        type=picture_file,
        metavar="OUT",
        help="draw .svg, .png or .pdf (needs paxkv[plot])",
    )


def run(args: argparse.Namespace) -> int:
    import json

    from rich.console import Console

    from paxkv.bench.figures import require_matplotlib, write_markdown
    from paxkv.bench.paging.job import PagingJob, run_paging
    from paxkv.bench.paging.tables import draw_paging, paging_tables
    from paxkv.cli.dataclass_flags import given_values

    if args.real:
        return _run_real(args)
    if args.plot is not None:
        require_matplotlib()
    job = PagingJob(**{**given_values(args, PagingJob), "trace": args.trace})
    report = run_paging(job, sharing=args.sharing)
    tables = paging_tables(report)
    console = Console()
    for table in tables:
        table.print(console)
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    if args.markdown is not None:
        write_markdown(args.markdown, "What paging saves, simulated", tables)
    if args.plot is not None:
        draw_paging(report, args.plot)
    return 0


def _run_real(args: argparse.Namespace) -> int:
    import json

    from rich.console import Console

    from paxkv.bench.figures import write_markdown
    from paxkv.bench.paging.job import PagingJob
    from paxkv.bench.paging.real import RealJob, real_table, run_real
    from paxkv.cli.dataclass_flags import given_values

    if args.model is None:
        raise ValueError("--real needs MODEL")
    if args.plot is not None:
        raise ValueError("--plot draws the simulation, not --real")
    given = given_values(args, PagingJob)
    known = {name: given[name] for name in given if name in RealJob.__dataclass_fields__}
    if len(known) < len(given):
        surplus = min(set(given) - set(known))
        raise ValueError(f"--{surplus.replace('_', '-')} is for the simulation, not for --real")
    report = run_real(RealJob(**{**known, "model": args.model, "trace": args.trace}))
    table = real_table(report)
    table.print(Console())
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    if args.markdown is not None:
        write_markdown(args.markdown, "What paging saves, on the engine", [table])
    return 0
