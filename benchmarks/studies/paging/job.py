"""What `benchmarks.studies paging` runs, and the figures it makes of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.studies.paging.clock import Clock
from benchmarks.studies.paging.language import Language
from benchmarks.studies.paging.occupancy import paged_occupancy, reserved_occupancy
from benchmarks.studies.paging.reserving import RESERVATIONS, ReservingMemory
from benchmarks.studies.paging.sharing import WIDTHS, beam_search, parallel_sampling
from benchmarks.studies.paging.simulation import Run, simulate
from benchmarks.studies.paging.system_prompt import run_prompts, shared_prompts
from benchmarks.studies.paging.trace import ALPACA, SHAREGPT, Lengths, Mix, Trace, read_trace
from paxkv.engine.config import ResolvedConfig
from paxkv.memory import BlockManager

PAGED = "paged"
BLOCK_SIZES = (4, 8, 16, 32, 64, 128, 256)
BLOCK_SIZE_TOKENS = 250_000
SHARED_REQUESTS = 200
BEAM_REQUESTS = 48
SYSTEM_TOKENS = 500
SYSTEM_REQUESTS = 100


@dataclass(frozen=True)
class PagingJob:
    """One comparison.

    Attributes:
        trace: path of a trace, or "synthetic" for the two documented mixes.
        num_requests: drawn from each mix.
        pool_slots: tokens that the memory holds; 15,700 is what 12 GB hold for OPT-13B, as in
            the PagedAttention paper.
        max_model_len: tokens. block_size: tokens a page.
        max_num_seqs, max_num_batched_tokens: of the scheduler.
        spread: of the mixes, standard deviation over mean.
        seed: of everything drawn.
    """

    trace: str = "synthetic"
    num_requests: int = 2000
    pool_slots: int = 15_700
    max_model_len: int = 2048
    block_size: int = 16
    max_num_seqs: int = 512
    max_num_batched_tokens: int = 2048
    spread: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_requests", "pool_slots", "block_size", "max_num_seqs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 1")
        if not self.spread > 0:
            raise ValueError(f"spread is {self.spread}, must be above 0")
        if not 2 <= self.max_model_len <= self.pool_slots:
            raise ValueError(
                f"max_model_len is {self.max_model_len}, must be 2 to pool_slots={self.pool_slots}"
            )

    def limits(self, block_size: int | None = None, caching: bool = False) -> ResolvedConfig:
        size = block_size or self.block_size
        return ResolvedConfig(
            max_model_len=self.max_model_len,
            block_size=size,
            num_gpu_blocks=self.pool_slots // size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            enable_prefix_caching=caching,
        )

    def traces(self) -> list[Trace]:
        if self.trace != "synthetic":
            return [read_trace(self.trace, self.max_model_len)]
        return [
            Mix(mix.name, mix.mean_prompt, mix.mean_output, self.spread).draw(
                self.num_requests, self.max_model_len, self.seed
            )
            for mix in (SHAREGPT, ALPACA)
        ]


def run_paging(job: PagingJob, sharing: bool = True) -> dict[str, Any]:
    """All figures, as values of JSON; `tables.py` says what they mean."""
    traces = job.traces()
    report: dict[str, Any] = {"job": asdict(job), "clock": asdict(Clock()), "traces": {}}
    for trace in traces:
        report["traces"][trace.name] = {
            "num_requests": len(trace.requests),
            "mean_prompt": trace.mean_prompt,
            "mean_output": trace.mean_output,
            "allocators": compare_allocators(job, trace.requests),
            "waste_by_block_size": waste_by_block_size(job, trace.requests),
        }
        if sharing:
            report["traces"][trace.name]["sharing"] = compare_sharing(job, trace.requests)
    if sharing:
        report["system_prompt"] = compare_system_prompt(job, traces[0].requests)
    return report


def compare_allocators(job: PagingJob, requests: tuple[Lengths, ...]) -> dict[str, Any]:
    figures = {}
    for name, (pool, reservation) in RESERVATIONS.items():
        memory = ReservingMemory(
            pool(job.pool_slots), reservation, requests, job.max_model_len, job.max_num_seqs
        )
        run = simulate(
            requests,
            memory,
            job.limits(),
            lambda final, memory=memory: reserved_occupancy(memory, final),  # type: ignore[misc]
        )
        figures[name] = _figures(run, requests)
    figures[PAGED] = _figures(_paged(job, requests, job.block_size), requests)
    return figures


def waste_by_block_size(job: PagingJob, requests: tuple[Lengths, ...]) -> dict[str, Any]:
    """Tail waste and requests held for each block size, on the trace's first 250,000 tokens."""
    ends = np.cumsum([lengths.total for lengths in requests])
    some = requests[: int(np.searchsorted(ends, BLOCK_SIZE_TOKENS)) + 1]
    figures = {}
    for size in BLOCK_SIZES:
        run = _paged(job, some, size)
        figures[str(size)] = {"waste": run.occupancy.waste, "held": run.mean_held}
    return figures


def _paged(job: PagingJob, requests: tuple[Lengths, ...], block_size: int) -> Run:
    limits = job.limits(block_size)
    memory = BlockManager(
        limits.num_gpu_blocks,
        block_size,
        max_rows=limits.max_num_seqs,
        max_blocks_per_row=limits.max_blocks_per_seq,
        caching=False,
    )
    return simulate(requests, memory, limits, lambda _: paged_occupancy(memory))


def _figures(run: Run, requests: tuple[Lengths, ...]) -> dict[str, Any]:
    return {
        "held": run.mean_held,
        "requests_per_second": len(requests) / run.seconds,
        "waste": run.occupancy.waste,
        "slots": asdict(run.occupancy),
        "preemptions": run.preemptions,
        "steps": run.steps,
        "tokens_computed": run.computed,
        "others_waited": bool(run.held),
    }


def compare_sharing(job: PagingJob, requests: tuple[Lengths, ...]) -> dict[str, Any]:
    """Shares of pages saved, by number of sequences."""
    sampled, searched = requests[:SHARED_REQUESTS], requests[:BEAM_REQUESTS]
    return {
        "parallel": {
            str(n): parallel_sampling(sampled, job.limits(), n)
            for n in WIDTHS
            if n <= job.max_num_seqs
        },
        "beam": {
            str(n): beam_search(searched, job.block_size, n, Language(n, seed=job.seed))
            for n in WIDTHS
        },
    }


def compare_system_prompt(job: PagingJob, requests: tuple[Lengths, ...]) -> dict[str, Any]:
    most = job.max_model_len - SYSTEM_TOKENS
    some = [each for each in requests if each.total <= most][:SYSTEM_REQUESTS]
    if not some:
        return {}
    prompts = shared_prompts(some, SYSTEM_TOKENS, seed=job.seed)
    outputs = [each.output for each in some]
    return {
        "with the prefix cache": asdict(run_prompts(prompts, outputs, job.limits(caching=True))),
        "without": asdict(run_prompts(prompts, outputs, job.limits())),
    }
