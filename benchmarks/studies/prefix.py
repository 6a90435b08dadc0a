"""`benchmarks.studies prefix`: hits of the prefix cache, and the price of early variable text."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies.output import add_output_flags, write_output
from benchmarks.studies.prompts import read_prompts, synthetic_prompts
from paxkv.bench.figures import FigureTable
from paxkv.cli.command_parser import CommandParser, add_model_argument
from paxkv.memory import BlockManager

SUMMARY = "hit rate of the prefix cache on prompts, and what variable text placed early costs"
Prompt = list[int]
SHOWN = 5


@dataclass(frozen=True)
class Replay:
    """Prompts run one after the other through the block manager's cache.

    prompt_tokens: in all. hit_tokens: of them found in the cache. evictions: pages.
    """

    prompt_tokens: int
    hit_tokens: int
    evictions: int

    @property
    def hit_rate(self) -> float:
        return self.hit_tokens / self.prompt_tokens


def replay(prompts: Sequence[Prompt], block_size: int, num_blocks: int | None = None) -> Replay:
    """num_blocks: pages of the pool; by default as many as all prompts need, so none is evicted.

    Raises ValueError if a prompt does not fit.
    """
    everything = sum(-(-len(ids) // block_size) for ids in prompts)
    memory = BlockManager(num_blocks or everything, block_size, max_rows=1)
    for ids in prompts:
        allocation = memory.allocate(ids)
        assert allocation is not None
        memory.cache_blocks(allocation.row, ids, len(ids))
        memory.free(allocation.row)
    stats = memory.stats()
    return Replay(stats.prefix_queries, stats.prefix_hits, stats.evictions)


def repeated_tokens(prompts: Sequence[Prompt], window: int) -> list[NDArray[np.bool_]]:
    """Per prompt `[len(prompt)]`: tokens within a run of `window` that other prompts have too.

    The run may stand anywhere there. Runs are compared by a 64-bit hash.
    """
    runs = [_run_hashes(np.asarray(ids, np.int64), window) for ids in prompts]
    seen: Counter[int] = Counter()
    for hashes in runs:
        seen.update(set(hashes.tolist()))
    marks = []
    for ids, hashes in zip(prompts, runs):
        starts = [place for place, each in enumerate(hashes.tolist()) if seen[each] > 1]
        edges = np.zeros(len(ids) + 1, np.int32)
        np.add.at(edges, starts, 1)
        np.add.at(edges, [start + window for start in starts], -1)
        marks.append(np.cumsum(edges)[:-1] > 0)
    return marks


def _run_hashes(ids: NDArray[np.int64], window: int) -> NDArray[np.uint64]:
    if len(ids) < window:
        return np.zeros(0, np.uint64)
    random = np.random.default_rng(window)
    weights = random.integers(1, 2**63, window, dtype=np.uint64) | np.uint64(1)
    mixed = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    return (np.lib.stride_tricks.sliding_window_view(mixed, window) * weights).sum(
        axis=1, dtype=np.uint64
    )


def repeated_first(prompts: Sequence[Prompt], marks: Sequence[NDArray[np.bool_]]) -> list[Prompt]:
    """The prompts with the text they have in common moved to the front, order kept otherwise."""
    moved = []
    for ids, mark in zip(prompts, marks):
        tokens = np.asarray(ids)
        moved.append([*tokens[mark].tolist(), *tokens[~mark].tolist()])
    return moved


def early_text(mark: NDArray[np.bool_]) -> tuple[int, int, int]:
    """`(start, length, behind)`: the first stretch of a prompt that is its own, and the repeated
    tokens behind it, which it keeps out of the cache."""
    own = np.flatnonzero(~mark)
    if not len(own):
        return len(mark), 0, 0
    start = int(own[0])
    later = np.flatnonzero(mark[start:])
    end = start + int(later[0]) if len(later) else len(mark)
    return start, end - start, int(np.count_nonzero(mark[start:]))


def run_prefix(
    prompts: Sequence[Prompt], block_size: int = 16, num_blocks: int | None = None
) -> dict[str, Any]:
    """Hit rates as the prompts are, and with their common text first; both as measured."""
    marks = repeated_tokens(prompts, block_size)
    moved = repeated_first(prompts, marks)
    given, best = (replay(each, block_size, num_blocks) for each in (prompts, moved))
    stretches = [early_text(mark) for mark in marks]
    worst = sorted(range(len(prompts)), key=lambda i: -stretches[i][2])[:SHOWN]
    return {
        "num_prompts": len(prompts),
        "block_size": block_size,
        "as given": asdict(given) | {"hit_rate": given.hit_rate},
        "common text first": asdict(best) | {"hit_rate": best.hit_rate},
        "hit_rate_lost": best.hit_rate - given.hit_rate,
        "worst": [
            dict(zip(("prompt", "start", "length", "behind"), (index, *stretches[index])))
            for index in worst
            if stretches[index][2]
        ],
    }


def prefix_tables(report: dict[str, Any]) -> list[FigureTable]:
    rows = tuple(
        (
            name,
            f"{report[name]['prompt_tokens']:,}",
            f"{report[name]['hit_tokens']:,}",
            f"{100 * report[name]['hit_rate']:.1f} %",
            str(report[name]["evictions"]),
        )
        for name in ("as given", "common text first")
    )
    lost = 100 * report["hit_rate_lost"]
    tables = [
        FigureTable(
            title=f"{report['num_prompts']} prompts, blocks of {report['block_size']}",
            columns=("prompts", "tokens", "hit", "hit rate", "evicted pages"),
            rows=rows,
            bar="hit rate",
            note=f"hit rate lost to variable text placed early: {max(lost, 0.0):.1f} points",
        )
    ]
    if report["worst"]:
        tables.append(
            FigureTable(
                title="Where it is: the first stretch of a prompt that no other has",
                columns=("prompt", "at token", "tokens", "repeated tokens behind it"),
                rows=tuple(tuple(str(v) for v in each.values()) for each in report["worst"]),
                note="Move such text (dates, names, ids) behind what prompts have in common.",
            )
        )
    return tables


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
    add_output_flags(parser, markdown=False)


def run(args: argparse.Namespace) -> None:
    for name in ("block_size", "num_blocks"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}, must be at least 1")
    if args.trace == "synthetic":
        prompts = synthetic_prompts()
    else:
        prompts = read_prompts(args.trace, args.model)
    report = run_prefix(prompts, args.block_size, args.num_blocks)
    write_output(args, "Prefix cache", report, prefix_tables(report))
