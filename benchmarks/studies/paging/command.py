"""`benchmarks.studies paging`: four allocators on one trace."""

from __future__ import annotations

import argparse

from benchmarks.studies.output import add_output_flags, write_output
from benchmarks.studies.paging.job import PagingJob, run_paging
from benchmarks.studies.paging.real import RealJob, real_table, run_real
from benchmarks.studies.paging.tables import draw_paging, paging_tables
from paxkv.bench.figures import require_matplotlib
from paxkv.cli.command_parser import CommandParser, add_model_argument
from paxkv.cli.dataclass_flags import add_dataclass_flags, given_values

SUMMARY = "what paging saves: four allocators on a trace of lengths, simulated or on the engine"


def add_arguments(parser: CommandParser) -> None:
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
    add_output_flags(parser, plot=True)


def run(args: argparse.Namespace) -> None:
    if args.real:
        _run_real(args)
        return
    if args.plot is not None:
        require_matplotlib()
    job = PagingJob(**{**given_values(args, PagingJob), "trace": args.trace})
    report = run_paging(job, sharing=args.sharing)
    write_output(args, "What paging saves, simulated", report, paging_tables(report))
    if args.plot is not None:
        draw_paging(report, args.plot)


def _run_real(args: argparse.Namespace) -> None:
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
    write_output(args, "What paging saves, on the engine", report, [real_table(report)])
