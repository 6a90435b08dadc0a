"""Pages saved by sharing on the engine itself: parallel sampling and beam search, by width.

    python -m benchmarks.studies beams --model smollm2-135m --workload FILE [--requests 12]

The share is of the pages that the sequences would hold without sharing, over all steps (figure 15
of the PagedAttention paper). Requests run side by side in a pool that holds them all.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.studies.output import add_output_flags
from benchmarks.studies.paging.sharing import WIDTHS, PageUse, saved
from paxkv import LLM, SamplingParams
from paxkv.bench.json_lines import json_objects
from paxkv.bench.throughput import machine
from paxkv.cli.command_parser import CommandParser, add_model_argument

SUMMARY = "pages saved by sharing on the engine itself: parallel sampling and beams, by width"
KINDS: dict[str, dict[str, Any]] = {
    "parallel": {"temperature": 1.0, "seed": 0},
    "beam": {"temperature": 0.0, "use_beam_search": True},
}


def share_saved(llm: LLM, lines: list[dict[str, Any]], fields: dict[str, Any]) -> float:
    engine = llm.engine
    for line in lines:
        params = SamplingParams(
            max_tokens=line["max_tokens"], ignore_eos=True, detokenize=False, **fields
        )
        engine.add(llm.input_processor.request(line["prompt"], params))
    uses = []
    while engine.has_work:
        engine.step()
        uses.append(PageUse.now(engine.block_manager))
    return saved(uses)


def add_arguments(parser: CommandParser) -> None:
    add_model_argument(parser)
    parser.add_argument(
        "--workload",
        type=Path,
        required=True,
        metavar="FILE",
        help="JSON lines with prompt and max_tokens",
    )
    parser.add_argument(
        "--requests", type=int, default=12, metavar="N", help="the first N (default: %(default)s)"
    )
    add_output_flags(parser, markdown=False)


def run(args: argparse.Namespace) -> None:
    lines = [fields for _, fields in json_objects(args.workload)][: args.requests]
    llm = LLM(
        args.model,
        max_model_len=1024,
        max_num_seqs=args.requests * max(WIDTHS),
        enable_prefix_caching=False,
        num_gpu_blocks_override=args.requests * max(WIDTHS) * 24,
        enforce_eager=True,
    )
    prompts = [len(llm.get_tokenizer().encode(line["prompt"])) for line in lines]
    report: dict[str, Any] = {
        "machine": machine(),
        "model": args.model,
        "requests": len(lines),
        "mean_prompt": sum(prompts) / len(lines),
        "mean_output": sum(line["max_tokens"] for line in lines) / len(lines),
        "saved": {kind: {} for kind in KINDS},
    }
    for kind, fields in KINDS.items():
        for width in WIDTHS:
            share = share_saved(llm, lines, fields | {"n": width})
            report["saved"][kind][width] = share
            print(f"{kind}, {width}: {100 * share:.1f} % of the pages saved", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
