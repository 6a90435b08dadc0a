"""What a step leaves on the device: sampled tokens, prompt scores and pooled hidden states."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from paxkv.engine.embedding import EmbeddingRequest
from paxkv.engine.request import Request
from paxkv.engine.scheduler.output import SchedulerOutput
from paxkv.engine.sequence import Sequence
from paxkv.outputs import token_logprobs
from paxkv.sampling.sampler import SampleResult
from paxkv.text.detokenizer import CONTEXT_TOKENS

if TYPE_CHECKING:
    from paxkv.engine.runner.runner import Runner


class DeviceClock:
    """Counts the seconds that the host spends inside `with`: launching, or waiting."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._start = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds += time.perf_counter() - self._start


@dataclass(frozen=True)
class SamplerOutput:
    """Results of `sample` for `sequences`, on the device; reading them waits for it."""

    sequences: list[Sequence]
    sampled: SampleResult | None
    clock: DeviceClock

    def tokens(self) -> list[int]:
        if self.sampled is None:
            return []
        with self.clock:
            return np.asarray(self.sampled.tokens).tolist()

    def bad(self) -> list[bool]:
        if self.sampled is None:
            return []
        with self.clock:
            return np.asarray(self.sampled.bad).tolist()

    def candidates(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids and log-probabilities `[rows, k]`, if there are beams among the rows."""
        assert self.sampled is not None
        found = self.sampled.candidates
        with self.clock:
            return np.asarray(found.ids), np.asarray(found.logprobs)


class PromptResults:
    """Reads the hidden states of the step launched last, before another one replaces them."""

    def __init__(self, runner: Runner, schedule: SchedulerOutput) -> None:
        self._runner = runner
        self._schedule = schedule

    def read(self) -> None:
        """Read the scores and sums of prompts, and the last hidden state of embeddings."""
        if self._schedule.num_prompts:
            self._read_prompts()
        for index, sample in enumerate(self._schedule.sample_slots):
            request = sample.sequence.request
            if isinstance(request, EmbeddingRequest) and sample.sequence.finish is None:
                request.pool(self._runner.sampled_from(index), 1)

    def _read_prompts(self) -> None:
        """Read all prompts; row `first + i` of a scheduled sequence is its position `start + i`.

        A prompt's last token, which may come in a step without chunks of prompts, is not needed.
        """
        first = 0
        for advance in self._schedule.scheduled:
            request = advance.sequence.request
            if advance.sequence.finish is None:
                if request.prompt_logprobs is not None:
                    self._score(request, first, advance.start, advance.count)
                if isinstance(request, EmbeddingRequest):
                    self._pool(request, first, advance.start, advance.count)
            first += advance.count

    def _score(self, request: Request, first: int, start: int, count: int) -> None:
        """Score prompt tokens; each row predicts the token after it."""
        known = request.prompt_logprobs
        assert known is not None
        prompt = request.prompt_token_ids
        begin = max(start, len(known) - 1)
        end = min(start + count, len(prompt) - 1)
        if begin >= end:
            return
        rows = np.arange(first + begin - start, first + end - start)
        targets = np.array(prompt[begin + 1 : end + 1])
        wanted = request.sampling_params.prompt_logprobs or 0
        for size, found in self._runner.score(rows, targets):
            for index in range(size):
                position = len(known)
                known.append(
                    token_logprobs(
                        prompt[position],
                        float(found.chosen[index]),
                        int(found.rank[index]),
                        found.ids[index, :wanted].tolist(),
                        found.values[index, :wanted].tolist(),
                        request.decoder(prompt[max(0, position - CONTEXT_TOKENS) : position]),
                    )
                )

    def _pool(self, request: EmbeddingRequest, first: int, start: int, count: int) -> None:
        """Add all tokens but the last, whose hidden state is read apart; none twice."""
        begin = max(start, request.num_pooled)
        end = min(start + count, request.num_prompt - 1)
        if request.wants_hidden and begin < end:
            row = first + begin - start
            request.pool(self._runner.hidden_sum(row, end - begin), end - begin)
