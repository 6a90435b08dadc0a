"""`paxkv tune`: the serving options that suit a latency target on this machine."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
from typing import Any

from paxkv.cli.command_parser import CommandParser, add_model_argument
from paxkv.cli.result_files import output_file

SUMMARY = "find max_num_seqs, max_num_batched_tokens and block_size for a latency target"


def add_arguments(parser: CommandParser) -> None:
    from paxkv.bench.serve.arrivals import ArrivalProcess
    from paxkv.bench.serve.datasets import DatasetOptions
    from paxkv.cli.dataclass_flags import add_dataclass_flags

    parser.usage = "paxkv tune MODEL --target METRIC:MS [options]"
    add_model_argument(parser, "as for paxkv serve")
    parser.add_argument(
        "--target",
        required=True,
        nargs="+",
        metavar="METRIC:MS",
        help="what most requests stay within: ttft:500 tpot:50 e2el:5000",
    )
    parser.add_argument(
        "--percentile", type=float, default=99, metavar="P", help="of the requests (default: 99)"
    )
    for name, numbers in (
        ("max-num-seqs", "16 64 256"),
        ("max-num-batched-tokens", "512 2048"),
        ("block-size", "16 32"),
    ):
        parser.add_argument(
            f"--{name}",
            nargs="+",
            type=int,
            default=[int(number) for number in numbers.split()],
            metavar="N",
            help=f"to try (default: {numbers})",
        )
    parser.add_argument("--max-concurrency", type=int, metavar="N", help="requests at once at most")
    parser.add_argument("--ignore-eos", action="store_true", help="answers have their full length")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    parser.add_argument("--json", type=output_file, metavar="OUT", help="write all figures here")
    add_dataclass_flags(parser, DatasetOptions, "requests", skip=("tokenizer",))
    add_dataclass_flags(parser, ArrivalProcess, "arrivals")
    parser.add_argument(
        "--serve-flags",
        type=shlex.split,
        default=[],
        metavar="TEXT",
        help="further flags of paxkv serve, as one text: --serve-flags='--dtype bfloat16'",
    )


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from paxkv.bench.serve.arrivals import ArrivalProcess
    from paxkv.bench.serve.datasets import DatasetOptions
    from paxkv.bench.serve.job import ServeJob, run_serve
    from paxkv.bench.serve.statistics import parse_goodput
    from paxkv.bench.server_process import ServerProcess
    from paxkv.bench.tune import Candidate, Target, best, candidates, closest, search, trial_table
    from paxkv.bench.tune_schedule import TuneSchedule
    from paxkv.cli.dataclass_flags import given_values

    if not 0 < args.percentile <= 100:
        raise ValueError(f"percentile is {args.percentile}, must be above 0 and at most 100")
    target = Target(parse_goodput(args.target), args.percentile)
    arrivals = ArrivalProcess(**given_values(args, ArrivalProcess))
    dataset = DatasetOptions(**given_values(args, DatasetOptions))
    found = candidates(args.max_num_seqs, args.max_num_batched_tokens, args.block_size)

    schedule = TuneSchedule(len(found), dataset.num_prompts, arrivals.request_rate)
    print(schedule.announcement, file=sys.stderr)

    def measure(candidate: Candidate) -> dict[str, Any]:
        print(f"{schedule.next()}: {' '.join(candidate.flags)}", file=sys.stderr)
        flags = ["--model", args.model, *args.serve_flags, *candidate.flags]
        with ServerProcess(flags) as server:
            job = ServeJob(
                base_url=server.url,
                ignore_eos=args.ignore_eos,
                seed=args.seed,
                server_pid=server.pid,
            )
            (report,) = asyncio.run(
                run_serve(
                    job,
                    arrivals,
                    dataset,
                    concurrencies=(args.max_concurrency,),
                    percentiles=(args.percentile,),
                )
            )
        return report

    trials = search(found, measure)
    trial_table(trials, target).print(Console())
    for trial in trials:
        if trial.error:
            print(f"{' '.join(trial.candidate.flags)}: {trial.error}", file=sys.stderr)
    if args.json is not None:
        content = [
            {"flags": trial.candidate.flags, "report": trial.report, "error": trial.error}
            for trial in trials
        ]
        args.json.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    chosen = best(trials, target)
    if chosen is not None:
        flags = ["--model", args.model, *args.serve_flags, *chosen.candidate.flags]
        print(f"paxkv serve {shlex.join(flags)}")
        return 0
    near = closest(trials, target)
    print("no setting meets the target", file=sys.stderr)
    if near is not None:
        print(f"closest: {' '.join(near.candidate.flags)}", file=sys.stderr)
    return 1
