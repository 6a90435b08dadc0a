"""A request, and the sequences it is made of."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from paxkv.engine.sequence import Sequence
from paxkv.outputs import RequestOutput, TokenLogprobs
from paxkv.sampling.allowed_tokens import AllowedTokens, token_bits
from paxkv.sampling.prng import split_seed
from paxkv.sampling.sampler import RowSettings, row_settings, row_words
from paxkv.sampling.sampling_params import SamplingParams
from paxkv.text.detokenizer import decode_each
from paxkv.text.grammar import Grammar
from paxkv.text.stop import StopRules
from paxkv.text.tokenizer import Tokenizer


@dataclass(eq=False)
class Request:
    """A request and the state of its answer.

    Its sequences share the prompt and then run independently, except in a `BeamRequest`.

    seed: 64 bits, never None here. max_tokens: with the room left in max_model_len applied.
    arrival: number of the request. rank: in line, see `Order`.
    first_scheduled, first_token, finished_time: seconds of `time.monotonic`, like arrival_time.
    """

    is_beam_group: ClassVar[bool] = False
    """Whether all sequences advance, are preempted and end together."""
    generates: ClassVar[bool] = True
    """Whether the caller asked for tokens."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    seed: int
    max_tokens: int
    rules: StopRules
    vocab_size: int
    allowed: AllowedTokens
    tokenizer: Tokenizer | None = None
    detokenizer_context: bool = False
    cache_salt: str | None = None
    grammar: Grammar | None = None
    arrival: int = 0
    rank: tuple[int, ...] = ()
    arrival_time: float = field(default_factory=time.monotonic)
    first_scheduled: float | None = None
    first_token: float | None = None
    finished_time: float | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    error: str | None = None

    def __post_init__(self) -> None:
        self.ended = False
        self.sequences = [Sequence(self, 0, list(self.prompt_token_ids))]
        self.prompt_logprobs: list[TokenLogprobs | None] | None = None
        if self.sampling_params.prompt_logprobs is not None:
            self.prompt_logprobs = [None]

    @cached_property
    def settings(self) -> RowSettings:
        return row_settings(self.sampling_params, self.vocab_size)

    @cached_property
    def is_random(self) -> bool:
        return self.settings.temperature > 0

    @cached_property
    def sampling_words(self) -> np.ndarray:
        """int32 words, as the device reads them: the bits of the settings and of the seed."""
        return np.concatenate([row_words(self.settings), split_seed(self.seed).view(np.int32)])

    @cached_property
    def end_bits(self) -> np.ndarray:
        """Bits uint32 `[ceil(V / 32)]` of the tokens that end an answer."""
        return token_bits(self.rules.end_ids, self.vocab_size)

    @cached_property
    def num_prompt(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_pending_children(self) -> int:
        """Sequences that are still to be forked."""
        return 0 if self.ended else self.sampling_params.children - len(self.sequences)

    @property
    def forks(self) -> int:
        """Sequences to fork once the prompt is computed."""
        return self.num_pending_children

    @property
    def finished(self) -> bool:
        for sequence in self.sequences:
            if sequence.finish is None:
                return False
        return self.num_pending_children == 0

    @cached_property
    def wants_logprobs(self) -> bool:
        """Whether log-probabilities of sampled tokens are needed, to show or to rank children."""
        return self.sampling_params.logprobs is not None or self.ranks_children

    @cached_property
    def ranks_children(self) -> bool:
        """Whether more sequences are sampled than returned."""
        return self.sampling_params.children > self.sampling_params.n

    @property
    def is_scored(self) -> bool:
        return self.wants_logprobs

    @cached_property
    def wants_hidden(self) -> bool:
        """Whether the hidden state of every prompt token is needed."""
        return self.sampling_params.prompt_logprobs is not None

    @property
    def reads_cache(self) -> bool:
        """Whether cached blocks may be used: a cached token has no hidden state."""
        return self.sampling_params.enable_prefix_caching is not False and not self.wants_hidden

    @property
    def leaves_cache(self) -> bool:
        return self.sampling_params.enable_prefix_caching is not False

    def decoder(self, context: list[int]) -> Callable[[list[int]], list[str]] | None:
        """Function that decodes each of some ids after `context`; None if no text is wanted."""
        if self.tokenizer is None or not self.sampling_params.detokenize:
            return None
        return partial(decode_each, self.tokenizer.backend, context)

    def end(self, reason: str) -> None:
        """End every sequence that still runs: "abort", "error" or "length"."""
        self.ended = True
        for sequence in self.sequences:
            sequence.end(reason)

    def cut(self, sequence: Sequence) -> None:
        """End the group of `sequence` for lack of room."""
        sequence.end("length")

    def output(self) -> RequestOutput:
        """Output so far; children are ranked when the request has finished."""
        finished = self.finished
        outputs = [s.output(index) for index, s in enumerate(self._shown(finished))]
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=outputs,
            finished=finished,
            prompt_logprobs=None if self.prompt_logprobs is None else list(self.prompt_logprobs),
            num_cached_tokens=self.num_cached_tokens,
            metrics=self._metrics(),
        )

    def _shown(self, finished: bool) -> list[Sequence]:
        """The sequences to return, in order."""
        sequences = self.sequences
        if finished and self.ranks_children:
            sequences = sorted(sequences, key=lambda s: -s.cumulative_logprob)
        return sequences[: self.sampling_params.n]

    def _metrics(self) -> dict[str, float | None]:
        return {
            "arrival_time": self.arrival_time,
            "first_scheduled_time": self.first_scheduled,
            "first_token_time": self.first_token,
            "finished_time": self.finished_time,
            "num_preemptions": self.num_preemptions,
        }
