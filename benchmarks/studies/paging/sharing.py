"""Memory saved when sequences of one request share its pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.studies.paging.beams import BeamRun
from benchmarks.studies.paging.language import Language
from benchmarks.studies.paging.simulation import simulate
from benchmarks.studies.paging.trace import Lengths
from paxkv.engine.config import ResolvedConfig
from paxkv.memory import BlockManager

WIDTHS = (2, 4, 6)


@dataclass(frozen=True)
class PageUse:
    """Pages at one moment: those in some table, and table cells that name them."""

    pages: int
    cells: int

    @classmethod
    def now(cls, memory: BlockManager) -> PageUse:
        references = memory.references
        return cls(int(np.count_nonzero(references)), int(references.sum()))


def saved(uses: Sequence[PageUse]) -> float:
    """Share of the pages that would be needed without sharing (the paper's figure 15)."""
    cells = sum(use.cells for use in uses)
    return 1 - sum(use.pages for use in uses) / cells if cells else 0.0


def parallel_sampling(requests: Sequence[Lengths], limits: ResolvedConfig, n: int) -> float:
    """Share saved over a run of the scheduler with `n` answers to each prompt.

    The pool is large enough for all rows, so that sharing is all that counts.
    """
    blocks = limits.max_num_seqs * limits.max_blocks_per_seq
    memory = BlockManager(
        blocks,
        limits.block_size,
        max_rows=limits.max_num_seqs,
        max_blocks_per_row=limits.max_blocks_per_seq,
        caching=False,
    )
    run = simulate(requests, memory, limits, lambda _: PageUse.now(memory), n=n)
    return saved([*run.probes, *run.rest_probes])


def beam_search(
    requests: Sequence[Lengths], block_size: int, width: int, language: Language
) -> float:
    """Share saved over the lives of all requests, run side by side in a pool that holds them."""
    run = BeamRun(requests, block_size, width, language)
    return saved([PageUse.now(run.memory) for _ in run.steps()])
