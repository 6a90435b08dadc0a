"""`paxkv bench serve`: load for a running server with OpenAI's API."""

from __future__ import annotations

import argparse
import os
from typing import Any

from paxkv.cli.command_parser import CommandParser, add_model_argument
from paxkv.cli.result_files import output_file, picture_file

SUMMARY = "load for any server with OpenAI's API: throughput, latencies, goodput"

# What `vllm bench serve` calls the same numbers, by dataset.
VLLM_NAMES = {
    "input_len": ["--random-input-len", "--prefix-repetition-suffix-len"],
    "output_len": [
        "--random-output-len",
        "--sharegpt-output-len",
        "--prefix-repetition-output-len",
    ],
    "range_ratio": ["--random-range-ratio"],
    "prefix_len": ["--prefix-repetition-prefix-len"],
    "num_prefixes": ["--prefix-repetition-num-prefixes"],
}


def add_arguments(parser: CommandParser) -> None:
    from paxkv.bench.serve.arrivals import ArrivalProcess
    from paxkv.bench.serve.datasets import DatasetOptions
    from paxkv.bench.serve.job import ServeJob
    from paxkv.cli.dataclass_flags import add_dataclass_flags

    parser.usage = "paxkv bench serve [--base-url URL] [options]"
    add_model_argument(
        parser, "name in the requests, by default the first one the server lists", required=False
    )
    add_dataclass_flags(
        parser, ServeJob, "server", skip=("model",), aliases={"backend": ["--endpoint-type"]}
    )
    parser.add_argument("--host", metavar="TEXT", help="of the server, instead of --base-url")
    parser.add_argument("--port", type=int, metavar="N", help="of the server (default: 8000)")
    parser.add_argument("--served-model-name", metavar="NAME", help="as --model, and before it")
    add_dataclass_flags(parser, DatasetOptions, "requests", aliases=VLLM_NAMES)
    add_dataclass_flags(parser, ArrivalProcess, "arrivals")
    parser.add_argument(
        "--max-concurrency",
        type=int,
        nargs="+",
        metavar="N",
        help="requests at once at most; several numbers make a run each",
    )
    parser.add_argument(
        "--goodput",
        nargs="+",
        default=[],
        metavar="METRIC:MS",
        help="count requests within these: ttft:200 tpot:50 e2el:5000",
    )
    parser.add_argument(
        "--metric-percentiles",
        default="50,95,99",
        metavar="LIST",
        help="percentiles to print (default: 50,95,99)",
    )
    parser.add_argument("--json", type=output_file, metavar="OUT", help="write all figures here")
    parser.add_argument("--plot", type=picture_file, metavar="OUT", help="write a picture here")


def run(args: argparse.Namespace) -> int:
    import asyncio
    import json
    import sys

    from rich.console import Console

    from paxkv.bench.figures import require_matplotlib
    from paxkv.bench.serve.arrivals import ArrivalProcess
    from paxkv.bench.serve.datasets import DatasetOptions
    from paxkv.bench.serve.job import ServeJob, run_serve
    from paxkv.bench.serve.report import concurrency_table, first_errors, report_text
    from paxkv.bench.serve.statistics import parse_goodput
    from paxkv.cli.dataclass_flags import given_values

    values = given_values(args, ServeJob)
    values.setdefault("api_key", os.environ.get("OPENAI_API_KEY"))
    values["model"] = args.served_model_name or args.model
    if args.host is not None or args.port is not None:
        if "base_url" in values:
            raise ValueError("--base-url and --host or --port exclude each other")
        values["base_url"] = f"http://{args.host or '127.0.0.1'}:{args.port or 8000}"
    percentiles = parse_percentiles(args.metric_percentiles)
    if any(number < 1 for number in args.max_concurrency or ()):
        raise ValueError(f"max_concurrency is {args.max_concurrency}, must be at least 1")
    if args.plot is not None:
        require_matplotlib()
    reports = asyncio.run(
        run_serve(
            ServeJob(**values),
            ArrivalProcess(**given_values(args, ArrivalProcess)),
            DatasetOptions(**given_values(args, DatasetOptions)),
            concurrencies=args.max_concurrency or (None,),
            percentiles=percentiles,
            goodput=parse_goodput(args.goodput) or None,
            progress=_progress,
        )
    )
    for report in reports:
        print(report_text(report, percentiles))
        for error in first_errors(report):
            print(f"failed: {error}", file=sys.stderr)
    if len(reports) > 1:
        concurrency_table(reports, percentiles).print(Console())
    if args.json is not None:
        args.json.write_text(json.dumps({"runs": reports}, indent=1, allow_nan=False) + "\n")
    if args.plot is not None:
        from paxkv.bench.serve.picture import draw

        draw(reports, args.plot)
    return 0 if all(report["completed"] for report in reports) else 1


def parse_percentiles(text: str) -> tuple[float, ...]:
    """Numbers from 0 to 100, ascending. Raises ValueError."""
    try:
        found = tuple(sorted(float(part) for part in text.split(",")))
    except ValueError:
        found = ()
    if not found or not all(0 < number <= 100 for number in found):
        raise ValueError(f"metric_percentiles is {text!r}, must be numbers up to 100, like 50,99")
    return found


def _progress(concurrency: int | None, count: int) -> Any:
    from tqdm import tqdm

    name = "requests" if concurrency is None else f"concurrency {concurrency}"
    bar = tqdm(total=count, desc=name, leave=False)

    def tell() -> None:
        bar.update()
        if bar.n == count:
            bar.close()

    return tell
