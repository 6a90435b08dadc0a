"""Beam searches under the engine's scheduler, their candidates from a made-up language."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from benchmarks.studies.paging.language import Language
from benchmarks.studies.paging.simulation import make_request
from benchmarks.studies.paging.trace import Lengths
from paxkv.engine.beam.request import BeamRequest, Searches
from paxkv.engine.config import ResolvedConfig
from paxkv.engine.scheduler.scheduler import Scheduler
from paxkv.memory import BlockManager


class BeamRun:
    """Requests of `width` beams each, side by side in a pool that holds them all.

    Scheduler, rule and block manager are the engine's; only the device is missing.
    """

    def __init__(
        self, requests: Sequence[Lengths], block_size: int, width: int, language: Language
    ) -> None:
        longest = max(each.total for each in requests)
        blocks = sum(-(-each.total // block_size) + 1 for each in requests) * width
        limits = ResolvedConfig(
            max_model_len=longest + 1,
            block_size=block_size,
            num_gpu_blocks=blocks,
            max_num_seqs=len(requests) * width,
            max_num_batched_tokens=longest * len(requests),
            enable_prefix_caching=False,
        )
        self.memory = BlockManager(
            blocks,
            block_size,
            max_rows=limits.max_num_seqs,
            max_blocks_per_row=limits.max_blocks_per_seq,
            caching=False,
        )
        self.scheduler = Scheduler(limits, self.memory)
        self._searches = Searches(limits.max_num_seqs, language.num_candidates)
        self._language = language
        for number, each in enumerate(requests):
            self.scheduler.add(
                make_request(
                    number,
                    [0] * each.prompt,
                    limits,
                    width,
                    max_tokens=each.output,
                    use_beam_search=True,
                )
            )

    def steps(self) -> Iterator[int]:
        """Run to the end; yields the tokens of each step while it is under way."""
        while self.scheduler.has_work:
            schedule = self.scheduler.schedule(uncommitted=False)
            assert schedule is not None
            self.memory.take_copies()
            self.memory.take_patches()
            yield schedule.num_tokens
            drawn = [draw.sequence for draw in schedule.sample_slots]
            for sequence in drawn:
                sequence.in_flight -= 1
            texts = [(sequence.request.arrival, sequence.token_ids) for sequence in drawn]
            self._searches.take(drawn, *self._language.candidates(texts))
            requests = {id(sequence.request): sequence.request for sequence in drawn}
            self.scheduler.queues.regroup(
                self._searches.step(cast(BeamRequest, request) for request in requests.values())
            )
