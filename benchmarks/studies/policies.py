"""`benchmarks.studies policies`: what each scheduling option gains and costs, simulated.

The engine's scheduler and block manager under requests that arrive over time, with the device
replaced by `Clock`. Each scenario is made for one option, and shows where it does nothing as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from benchmarks.studies.output import add_output_flags, write_output
from benchmarks.studies.paging.clock import Clock
from benchmarks.studies.paging.simulation import make_request
from benchmarks.studies.paging.trace import ALPACA, SHAREGPT, Mix
from paxkv.bench.figures import FigureTable
from paxkv.cli.command_parser import CommandParser
from paxkv.engine.config import ResolvedConfig
from paxkv.engine.request import Request
from paxkv.engine.scheduler.scheduler import Scheduler
from paxkv.memory import BlockManager

SUMMARY = "what each scheduling option gains and costs, simulated"
BASE = ResolvedConfig(
    max_model_len=8192,
    block_size=16,
    num_gpu_blocks=981,
    max_num_seqs=64,
    max_num_batched_tokens=512,
    enable_prefix_caching=False,
)
"""12 GB of keys and values of a 13-billion-parameter model, as in `benchmarks.studies paging`."""


@dataclass(frozen=True)
class Arrival:
    """kind: whom figures are kept apart for. max_tokens: what the request says of its length."""

    kind: str
    seconds: float
    prompt: int
    output: int
    priority: int = 0
    max_tokens: int | None = None


@dataclass(frozen=True)
class Outcome:
    """Seconds after arrival until the first token, and until the end."""

    kind: str
    first: float
    end: float


@dataclass(frozen=True)
class Figures:
    """requests_per_second: of all. first, end: seconds by kind, mean and 95 in 100."""

    requests_per_second: float
    preemptions: int
    first: dict[str, tuple[float, float]]
    end: dict[str, tuple[float, float]]


def replay(
    arrivals: Sequence[Arrival],
    config: ResolvedConfig = BASE,
    clock: Clock | None = None,
) -> Figures:
    """Run all to their end; arrivals are in order of time."""
    clock = clock or Clock()
    memory = BlockManager(
        config.num_gpu_blocks,
        config.block_size,
        max_rows=config.max_num_seqs,
        max_blocks_per_row=config.max_blocks_per_seq,
        caching=False,
    )
    now = 0.0
    scheduler = Scheduler(config, memory, clock=lambda: now)
    coming = iter(enumerate(arrivals))
    following = next(coming, None)
    first: dict[int, float] = {}
    outcomes: list[Outcome] = []
    while following is not None or scheduler.has_work:
        if not scheduler.has_work:
            assert following is not None
            now = max(now, following[1].seconds)
        while following is not None and following[1].seconds <= now:
            scheduler.add(_request(*following, config))
            following = next(coming, None)
        schedule = scheduler.schedule(uncommitted=False)
        if schedule is None:
            raise ValueError("a request needs more memory than the pool has")
        rows = np.array([advance.sequence.row for advance in schedule.scheduled], np.int32)
        now += clock.seconds(schedule.num_tokens, int(memory.num_tokens[rows].sum()))
        scheduler.ended(schedule)
        for draw in schedule.sample_slots:
            sequence = draw.sequence
            sequence.in_flight -= 1
            sequence.token_ids.append(1)
            number = sequence.request.arrival
            asked = arrivals[number]
            first.setdefault(number, now - asked.seconds)
            if len(sequence.output_token_ids) >= asked.output:
                sequence.end("stop")
                scheduler.finish(sequence)
                outcomes.append(Outcome(asked.kind, first[number], now - asked.seconds))
    kinds = {asked.kind: None for asked in arrivals}
    return Figures(
        requests_per_second=len(arrivals) / now,
        preemptions=scheduler.num_preemptions,
        first={k: _spread(o.first for o in outcomes if o.kind == k) for k in kinds},
        end={k: _spread(o.end for o in outcomes if o.kind == k) for k in kinds},
    )


def _request(number: int, asked: Arrival, config: ResolvedConfig) -> Request:
    return make_request(
        number,
        [0] * asked.prompt,
        config,
        max_tokens=asked.max_tokens,
        priority=asked.priority,
        arrival_time=asked.seconds,
    )


def _spread(values: Iterable[float]) -> tuple[float, float]:
    found = np.array(list(values))
    return float(found.mean()), float(np.quantile(found, 0.95))


# Scenarios


def long_among_short(num_requests: int, seed: int = 0) -> list[Arrival]:
    """Short questions, and now and then a document of 6,000 tokens: a second of prefill."""
    random = np.random.default_rng(seed)
    times = np.cumsum(random.exponential(0.25, num_requests)).tolist()
    return [
        Arrival("long", at, 6000, 50) if number % 12 == 5 else Arrival("short", at, 40, 50)
        for number, at in enumerate(times)
    ]


def backlog(mix: Mix, num_requests: int, known: bool, seed: int = 0) -> list[Arrival]:
    """All there at the start; known: max_tokens says how long the answer is."""
    trace = mix.draw(num_requests, 2048, seed)
    median = sorted(each.total for each in trace.requests)[num_requests // 2]
    return [
        Arrival(
            "short" if each.total <= median else "long",
            0.0,
            each.prompt,
            each.output,
            max_tokens=each.output if known else None,
        )
        for each in trace.requests
    ]


def of_one_length(num_requests: int) -> list[Arrival]:
    return [Arrival("all", 0.0, 161, 338, max_tokens=338)] * num_requests


def trickle(num_requests: int, seed: int = 0) -> list[Arrival]:
    """Short requests one by one, as many as the device can just serve."""
    random = np.random.default_rng(seed)
    times = np.cumsum(random.exponential(1 / 60, num_requests)).tolist()
    trace = ALPACA.draw(num_requests, 2048, seed)
    return [Arrival("all", t, r.prompt, r.output) for t, r in zip(times, trace.requests)]


def urgent_stream(num_requests: int, seed: int = 0) -> list[Arrival]:
    """More urgent work than the device can do, and every tenth request is not urgent."""
    random = np.random.default_rng(seed)
    times = np.cumsum(random.exponential(1 / 5, num_requests)).tolist()
    trace = SHAREGPT.draw(num_requests, 2048, seed)
    return [
        Arrival(
            "patient" if number % 10 == 0 else "urgent",
            at,
            each.prompt,
            each.output,
            priority=int(number % 10 != 0),
        )
        for number, (at, each) in enumerate(zip(times, trace.requests))
    ]


SHARED = replace(
    BASE, max_num_partial_prefills=4, long_prefill_token_threshold=int(0.04 * BASE.max_model_len)
)
FIRST_COME = "first come, first served"


def scenarios(num_requests: int) -> dict[str, tuple[list[Arrival], dict[str, ResolvedConfig]]]:
    """By title: the arrivals, and the configurations to compare on them."""
    lengths = {FIRST_COME: BASE, "length_aware": replace(BASE, length_aware=True)}
    shares = {FIRST_COME: BASE, "max_num_partial_prefills=4": SHARED}
    return {
        "Short prompts behind long ones": (long_among_short(num_requests), shares),
        "A backlog of ordinary prompts": (backlog(SHAREGPT, num_requests, known=False), shares),
        "A backlog whose max_tokens are known": (backlog(SHAREGPT, num_requests, True), lengths),
        "A backlog whose max_tokens are not": (backlog(SHAREGPT, num_requests, False), lengths),
        "A backlog of one length": (of_one_length(num_requests), lengths),
        "Short requests, one by one": (
            trickle(num_requests),
            {
                FIRST_COME: BASE,
                "scheduler_delay_factor=0.5": replace(BASE, scheduler_delay_factor=0.5),
                "scheduler_delay_factor=4": replace(BASE, scheduler_delay_factor=4.0),
            },
        ),
        "More urgent work than can be done": (
            urgent_stream(num_requests),
            {
                "priority alone": BASE,
                "priority_aging_steps=200": replace(BASE, priority_aging_steps=200),
            },
        ),
    }


def run_policies(num_requests: int) -> dict[str, Any]:
    """All figures, as values of JSON. Raises ValueError for fewer than 20 requests."""
    if num_requests < 20:
        raise ValueError(f"num_requests is {num_requests}, must be at least 20")
    return {
        "num_requests": num_requests,
        "clock": asdict(Clock()),
        "config": asdict(BASE),
        "scenarios": {
            title: {name: asdict(replay(arrivals, config)) for name, config in configs.items()}
            for title, (arrivals, configs) in scenarios(num_requests).items()
        },
    }


def policy_tables(report: dict[str, Any]) -> list[FigureTable]:
    tables = []
    for title, runs in report["scenarios"].items():
        rows = []
        for name, figures in runs.items():
            for kind in figures["first"]:
                rows.append(
                    (
                        name,
                        kind,
                        *(f"{value:.2f}" for value in figures["first"][kind]),
                        *(f"{value:.2f}" for value in figures["end"][kind]),
                        f"{figures['requests_per_second']:.2f}",
                        str(figures["preemptions"]),
                    )
                )
        tables.append(
            FigureTable(
                title=title,
                columns=(
                    "policy",
                    "of",
                    "first token",
                    "95 %",
                    "end",
                    "95 %",
                    "req/s",
                    "preempted",
                ),
                rows=tuple(rows),
            )
        )
    tables[-1] = FigureTable(
        tables[-1].title,
        tables[-1].columns,
        tables[-1].rows,
        note="Seconds after arrival, mean and 95 in 100; simulated, as are req/s of all requests.",
    )
    return tables


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--num-requests", type=int, default=400, metavar="N", help="of each scenario (default: 400)"
    )
    add_output_flags(parser)


def run(args: argparse.Namespace) -> None:
    report = run_policies(args.num_requests)
    write_output(args, "Scheduling options, simulated", report, policy_tables(report))
