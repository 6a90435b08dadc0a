"""`paxkv bench serve`: load for a running server with OpenAI's API."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

SUMMARY = "load for any server with OpenAI's API: throughput, latencies, goodput"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from paxkv.bench.serve.arrivals import ArrivalProcess
    from paxkv.bench.serve.datasets import DatasetOptions
    from paxkv.bench.serve.job import ServeJob
    from paxkv.cli.dataclass_flags import add_dataclass_flags

    parser.usage = "paxkv bench serve [--base-url URL] [options]"
    add_dataclass_flags(parser, ServeJob, "server")
    add_dataclass_flags(parser, DatasetOptions, "requests")
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
    parser.add_argument("--json", type=Path, metavar="OUT", help="write all figures here")
    parser.add_argument("--plot", type=Path, metavar="OUT", help="write a picture here")


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
        args.json.write_text(
            json.dumps({"runs": reports}, indent=1, allow_nan=False) + "\n", encoding="utf-8"
        )
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
