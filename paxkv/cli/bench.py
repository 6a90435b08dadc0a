"""`paxkv bench`: measurements."""

from __future__ import annotations

import argparse
from pathlib import Path

from paxkv.cli import bench_kernel, bench_serve
from paxkv.cli.command_parser import CommandParser
from paxkv.cli.engine_flags import add_engine_flags, engine_arguments
from paxkv.cli.result_files import output_file

SUMMARY = "measure throughput, a server, and kernels"
KINDS = {"kernel": bench_kernel, "serve": bench_serve}
PEERS = {
    "hf": ["hf_generate", "hf_continuous"],
    "hf_generate": ["hf_generate"],
    "hf_continuous": ["hf_continuous"],
}


def add_arguments(parser: CommandParser) -> None:
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    throughput = kinds.add_parser(
        "throughput",
        help="run a workload file, all requests submitted at once",
    )
    throughput.usage = "paxkv bench throughput MODEL --workload FILE [options]"
    throughput.add_argument(
        "--workload",
        required=True,
        type=Path,
        metavar="FILE",
        help="JSON lines with prompt_token_ids, max_tokens, temperature, n, seed, ignore_eos",
    )
    throughput.add_argument("--limit", type=int, metavar="N", help="use the first N requests only")
    throughput.add_argument(
        "--compare",
        choices=list(PEERS),
        help="run the same work on transformers too: generate, continuous batching, or both (hf)",
    )
    throughput.add_argument("--runs", type=int, default=1, metavar="N", help="runs per engine")
    throughput.add_argument(
        "--hf-batch-size",
        type=int,
        default=64,
        metavar="N",
        help="sequences in one static batch of transformers (default: 64)",
    )
    throughput.add_argument(
        "--json", type=output_file, metavar="OUT", help="write all figures here"
    )
    add_engine_flags(throughput)
    for name, module in KINDS.items():
        kind = kinds.add_parser(name, help=module.SUMMARY, description=module.SUMMARY)
        module.add_arguments(kind)


def run(args: argparse.Namespace) -> int:
    if args.kind in KINDS:
        return KINDS[args.kind].run(args)
    from paxkv.bench.throughput import ThroughputJob, run_throughput

    engines = ["paxkv", *PEERS.get(args.compare, [])]
    job = ThroughputJob(
        model=args.model,
        workload=args.workload,
        limit=args.limit,
        runs=args.runs,
        hf_batch_size=args.hf_batch_size,
        engine_arguments=engine_arguments(args),
    )
    run_throughput(job, engines, args.json)
    return 0
