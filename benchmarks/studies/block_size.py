"""`benchmarks.studies block-size`: the real engine on one workload, once for each block size."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.studies.output import add_output_flags, write_output
from benchmarks.studies.paging.occupancy import page_slots
from paxkv.bench.figures import FigureTable, require_matplotlib, write_picture
from paxkv.bench.paxkv_engine import sampling_params
from paxkv.bench.workload import Workload, WorkloadRequest, read_workload
from paxkv.cli.command_parser import CommandParser
from paxkv.cli.engine_flags import add_engine_flags, engine_arguments
from paxkv.output_file import OutputFile

SUMMARY = "throughput, waste and table bytes of the engine by block size"
BLOCK_SIZES = (4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class BlockSizeRun:
    """One block size.

    Attributes:
        seconds: the fastest run. cpu_seconds: of all cores in the run that took fewest; less
            disturbed by others on the machine. output_tokens: of one run.
        waste: empty share of the slots of pages in use, mean over all steps.
        table_bytes: of the block tables, as on the device.
        num_blocks: pages of the pool. peak_blocks: most in use at once.
        preemptions: of all runs.
        compile_seconds: before the first run.
    """

    block_size: int
    seconds: float
    cpu_seconds: float
    output_tokens: int
    waste: float
    table_bytes: int
    num_blocks: int
    peak_blocks: int
    preemptions: int
    compile_seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.output_tokens / self.seconds

    @property
    def tokens_per_cpu_second(self) -> float:
        return self.output_tokens / self.cpu_seconds


def synthetic_workload(num_requests: int, longest: int, vocab_size: int) -> Workload:
    """Prompts and answers of many lengths, `longest` tokens together at most; always the same."""
    import numpy as np

    random = np.random.default_rng(0)
    requests = []
    for _ in range(num_requests):
        total = int(random.integers(8, max(9, longest)))
        prompt = int(random.integers(1, total))
        ids = random.integers(0, vocab_size, prompt).tolist()
        requests.append(WorkloadRequest(tuple(ids), max_tokens=total - prompt, ignore_eos=True))
    return Workload("synthetic", tuple(requests))


def measure_block_size(
    model: str,
    workload: Workload | int,
    block_size: int,
    runs: int,
    engine_arguments: dict[str, Any],
) -> BlockSizeRun:
    """Start an engine and run the workload `runs` times, each with an empty prefix cache.

    workload: requests, or how many to make up.
    """
    from paxkv.engine.input_processor import InputProcessor
    from paxkv.llm import LLM

    arguments = engine_arguments | {"block_size": block_size}
    llm = LLM(model, skip_tokenizer_init=True, **arguments)
    if isinstance(workload, int):
        longest = min(512, llm.engine.config.max_model_len)
        workload = synthetic_workload(workload, longest, llm.model_config.vocab_size)
    input_processor = InputProcessor(llm.engine, llm.model_config, None)
    prompts = [list(request.prompt_token_ids) for request in workload.requests]
    params = [sampling_params(request) for request in workload.requests]
    memory = llm.engine.block_manager
    seconds: list[float] = []
    cpu_seconds: list[float] = []
    output_tokens, peak = 0, 0
    wastes: list[float] = []
    for _ in range(runs):
        llm.reset_prefix_cache()
        requests = input_processor.requests(prompts, params)
        start, cpu_start = time.perf_counter(), time.process_time()
        for request in requests:
            llm.engine.add(request)
        while llm.engine.has_work:
            llm.engine.step()
            used, held = page_slots(memory)
            if held:
                wastes.append(1 - used / held)
                peak = max(peak, held // block_size)
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
        output_tokens = sum(len(s.output_token_ids) for r in requests for s in r.sequences)
    stats = llm.stats()
    return BlockSizeRun(
        block_size=block_size,
        seconds=min(seconds),
        cpu_seconds=min(cpu_seconds),
        output_tokens=output_tokens,
        waste=sum(wastes) / len(wastes),
        table_bytes=memory.tables.nbytes,
        num_blocks=memory.num_blocks,
        peak_blocks=peak,
        preemptions=stats.preemptions,
        compile_seconds=stats.compile_seconds,
    )


def block_size_report(runs: list[BlockSizeRun]) -> dict[str, Any]:
    return {
        str(run.block_size): asdict(run)
        | {
            "tokens_per_second": run.tokens_per_second,
            "tokens_per_cpu_second": run.tokens_per_cpu_second,
        }
        for run in runs
    }


def block_size_table(runs: list[BlockSizeRun]) -> FigureTable:
    return FigureTable(
        title="The engine by block size",
        columns=(
            "block",
            "tokens/s",
            "per CPU s",
            "waste",
            "table bytes",
            "pages",
            "in use",
            "preempted",
        ),
        rows=tuple(
            (
                str(run.block_size),
                f"{run.tokens_per_second:.1f}",
                f"{run.tokens_per_cpu_second:.1f}",
                f"{100 * run.waste:.1f} %",
                f"{run.table_bytes:,}",
                f"{run.num_blocks:,}",
                f"{run.peak_blocks:,}",
                str(run.preemptions),
            )
            for run in runs
        ),
        bar="tokens/s",
        note=(
            "tokens/s: output. waste: empty share of the slots of pages in use, mean over all "
            "steps. in use: most pages at once."
        ),
    )


def draw_block_sizes(runs: list[BlockSizeRun], file: OutputFile) -> None:
    """Work done, waste and table bytes by block size; raises ValueError like `draw_paging`."""
    canvas = require_matplotlib().Figure(figsize=(12, 3.6), layout="constrained")
    sizes = [str(run.block_size) for run in runs]
    panels = (
        ("output tokens per CPU second", [run.tokens_per_cpu_second for run in runs]),
        ("waste, %", [100 * run.waste for run in runs]),
        ("table KiB", [run.table_bytes / 1024 for run in runs]),
    )
    for axes, (title, values) in zip(canvas.subplots(1, len(panels)), panels):
        axes.plot(sizes, values, "o-", color="#0072B2")
        axes.set(title=title, xlabel="block size", ylim=(0, None))
    write_picture(file, canvas)


def add_arguments(parser: CommandParser) -> None:
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
    add_output_flags(parser, plot=True)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> None:
    sizes = _sizes(args.block_sizes)
    for name in ("num_requests", "runs"):
        if getattr(args, name) < 1:
            raise ValueError(f"{name} is {getattr(args, name)}, must be at least 1")
    if args.plot is not None:
        require_matplotlib()
    workload: Workload | int = args.num_requests
    if args.workload is not None:
        workload = read_workload(args.workload, args.num_requests)
    runs = []
    for size in sizes:
        print(f"block size {size} …", file=sys.stderr)
        runs.append(
            measure_block_size(args.model, workload, size, args.runs, engine_arguments(args))
        )
    write_output(args, "Block size", block_size_report(runs), [block_size_table(runs)])
    if args.plot is not None:
        draw_block_sizes(runs, args.plot)


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
