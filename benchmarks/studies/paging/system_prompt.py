"""One system prompt under many requests, with and without the prefix cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.studies.paging.clock import Clock
from benchmarks.studies.paging.sharing import PageUse, saved
from benchmarks.studies.paging.simulation import simulate
from benchmarks.studies.paging.trace import Lengths
from paxkv.engine.config import ResolvedConfig
from paxkv.memory import BlockManager


@dataclass(frozen=True)
class PrefixFigures:
    """One run.

    Attributes:
        kv_saved: share of the pages that sharing made unnecessary.
        hit_rate: share of the prompt tokens that came from the cache.
        prefill_tokens: prompt tokens computed.
        prefill_seconds: simulated, their arithmetic alone.
        mean_first_token: simulated seconds to a request's first token, waiting included.
        seconds: simulated, for everything.
    """

    kv_saved: float
    hit_rate: float
    prefill_tokens: int
    prefill_seconds: float
    mean_first_token: float
    seconds: float


def shared_prompts(
    requests: Sequence[Lengths], system_tokens: int, early_tokens: int = 0, seed: int = 0
) -> list[list[int]]:
    """Prompts of `system_tokens` equal tokens and then each request's own.

    early_tokens: so many of a prompt's own tokens stand in front of the shared ones.
    """
    random = np.random.default_rng(seed)
    system = random.integers(0, 1 << 30, system_tokens).tolist()
    prompts = []
    for lengths in requests:
        own = random.integers(0, 1 << 30, max(lengths.prompt, early_tokens)).tolist()
        prompts.append(own[:early_tokens] + system + own[early_tokens:])
    return prompts


def run_prompts(
    prompts: Sequence[list[int]],
    outputs: Sequence[int],
    limits: ResolvedConfig,
    clock: Clock | None = None,
) -> PrefixFigures:
    """Run the prompts through the scheduler, with the cache if `limits.enable_prefix_caching`."""
    clock = clock or Clock()
    memory = BlockManager(
        limits.num_gpu_blocks,
        limits.block_size,
        max_rows=limits.max_num_seqs,
        caching=limits.enable_prefix_caching,
    )
    requests = [Lengths(len(ids), out) for ids, out in zip(prompts, outputs, strict=True)]

    def probe(_: dict[int, int]) -> Any:
        return PageUse.now(memory)

    run = simulate(requests, memory, limits, probe, prompts=prompts, clock=clock)
    stats = memory.stats()
    asked = sum(len(ids) for ids in prompts)
    computed = asked - stats.prefix_hits
    return PrefixFigures(
        kv_saved=saved([*run.probes, *run.rest_probes]),
        hit_rate=stats.prefix_hits / asked,
        prefill_tokens=computed,
        prefill_seconds=computed * clock.flops_per_token / clock.flops_per_second,
        mean_first_token=float(np.mean(list(run.first_tokens.values()))),
        seconds=run.seconds,
    )
