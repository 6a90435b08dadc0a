"""A request, and the sequences it is made of."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from paxkv.engine.beams import BeamSearch, Hypothesis
from paxkv.memory import HashChain, Swapped
from paxkv.outputs import CompletionOutput, RequestOutput, TokenLogprobs
from paxkv.sampling.allowed_tokens import AllowedTokens, NoTokenAllowed
from paxkv.sampling.keys import split_seed
from paxkv.sampling.params import SamplingParams
from paxkv.sampling.sampler import RowSettings, row_settings
from paxkv.text.detokenizer import Detokenizer
from paxkv.text.grammar import Grammar
from paxkv.text.stop import SequenceText, StopDecision, StopRules
from paxkv.text.tokenizer import Tokenizer


@dataclass(eq=False)
class Request:
    """What was asked for, and what is known of the answer.

    A beam search has a sequence for each running beam, in the places `search` has them in, and at
    the end one for each beam found.

    seed: 64 bits, never None here. max_tokens: with the room left in max_model_len applied.
    arrival: number of the request. place: in line, see `Order`.
    first_scheduled, first_token, finished_time: seconds of `time.monotonic`, like arrival_time.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
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
    place: tuple[int, ...] = ()
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
        if self.params.prompt_logprobs is not None:
            self.prompt_logprobs = [None]
        self.search: BeamSearch | None = None
        if self.params.use_beam_search:
            self.search = BeamSearch(
                self.params.children,
                self.max_tokens,
                end_ids=self.rules.end_ids.keys(),
                length_penalty=self.params.length_penalty,
                early_stopping=self.params.early_stopping,
            )

    @cached_property
    def key(self) -> np.ndarray:
        return split_seed(self.seed)

    @cached_property
    def settings(self) -> RowSettings:
        return row_settings(self.params, self.vocab_size)

    @property
    def num_prompt(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def unborn(self) -> int:
        """Children that will join once the prompt is computed, or beams once candidates do."""
        return 0 if self.ended else self.params.children - len(self.sequences)

    @property
    def finished(self) -> bool:
        return self.unborn == 0 and all(s.decision is not None for s in self.sequences)

    @property
    def wants_logprobs(self) -> bool:
        """Whether log-probabilities of drawn tokens are needed, to show or to rank children."""
        return self.params.logprobs is not None or self.ranks_children

    @property
    def ranks_children(self) -> bool:
        """Whether more is drawn than returned. Beams are ranked by their own rule."""
        return self.params.children > self.params.n and self.search is None

    @property
    def is_scored(self) -> bool:
        return self.wants_logprobs or self.search is not None

    @property
    def all_drawn(self) -> bool:
        """Whether every beam has its candidates, so that the search can go on."""
        return all(sequence.candidates is not None for sequence in self.sequences)

    @property
    def reads_cache(self) -> bool:
        """A cached prompt token has no hidden state, so its log-probability would be missing."""
        return (
            self.params.enable_prefix_caching is not False and self.params.prompt_logprobs is None
        )

    @property
    def leaves_cache(self) -> bool:
        return self.params.enable_prefix_caching is not False

    def end(self, reason: str) -> None:
        """End every sequence that still runs: "abort", "error" or "length"."""
        self.ended = True
        for sequence in self.sequences:
            sequence.end(reason)
        if self.search is not None:
            self.search.close()
            found = enumerate(self.search.finished)
            self.sequences = [self._found(beam, index, reason) for index, beam in found] or (
                self.sequences[:1]
            )

    def _found(self, beam: Hypothesis, index: int, reason: str) -> Sequence:
        """The sequence of a finished beam; `reason` holds unless its tokens ended it."""
        sequence = Sequence(self, index, [*self.prompt_token_ids, *beam.token_ids])
        sequence.cumulative_logprob = beam.logprob
        for token in beam.token_ids:
            sequence.decision = sequence.text.push(token)
        sequence.end(reason)
        return sequence

    def output(self) -> RequestOutput:
        """Everything so far; children are ranked when the request has finished.

        Of a beam search nothing is known before it ends.
        """
        finished = self.finished
        sequences = self.sequences if finished or self.search is None else []
        if finished and self.ranks_children:
            sequences = sorted(sequences, key=lambda s: -s.cumulative_logprob)
        outputs = [s.output(index) for index, s in enumerate(sequences[: self.params.n])]
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

    def _metrics(self) -> dict[str, float | None]:
        return {
            "arrival_time": self.arrival_time,
            "first_scheduled_time": self.first_scheduled,
            "first_token_time": self.first_token,
            "finished_time": self.finished_time,
            "num_preemptions": self.num_preemptions,
        }


class Sequence:
    """One line of tokens: a prompt and one answer to it.

    Attributes:
        token_ids: prompt and committed output.
        num_computed: tokens whose keys and values are in the pages once the steps issued so far
            have run.
        in_flight: tokens drawn on device, or about to be, that the host has not seen.
        row: of the block table and every other per-sequence array, None while not running.
        swapped: its pages in host memory, None while not there.
        candidates: of a beam that waits for the others: ids and log-probabilities `[k]`.
        origin: of a preempted beam: another one and the number of leading blocks they share.
    """

    __slots__ = (
        "candidates",
        "chain",
        "cumulative_logprob",
        "decision",
        "grammar",
        "in_flight",
        "index",
        "logprobs",
        "num_computed",
        "num_resumed",
        "origin",
        "request",
        "row",
        "swapped",
        "text",
        "token_ids",
    )

    def __init__(self, request: Request, index: int, token_ids: list[int]) -> None:
        self.request = request
        self.index = index
        self.token_ids = token_ids
        self.num_computed = 0
        self.num_resumed = 0
        self.in_flight = 0
        self.row: int | None = None
        self.swapped: Swapped | None = None
        self.chain: HashChain | None = None
        self.candidates: tuple[np.ndarray, np.ndarray] | None = None
        self.origin: tuple[Sequence, int] | None = None
        self.decision: StopDecision | None = None
        self.grammar = None if request.grammar is None else request.grammar.copy()
        self.cumulative_logprob = 0.0
        self.logprobs: list[TokenLogprobs] | None = None
        if request.params.logprobs is not None:
            self.logprobs = []
        detokenizer = None
        if request.tokenizer is not None and request.params.detokenize:
            detokenizer = Detokenizer(
                request.tokenizer.backend,
                skip_special_tokens=request.params.skip_special_tokens,
                context=request.prompt_token_ids if request.detokenizer_context else (),
            )
        self.text = SequenceText(request.rules, detokenizer)

    @property
    def num_remaining(self) -> int:
        """Tokens to compute before the next one can be drawn, those in flight included."""
        return len(self.token_ids) + self.in_flight - self.num_computed

    @property
    def num_output(self) -> int:
        """Tokens drawn, those in flight included."""
        return len(self.token_ids) + self.in_flight - self.request.num_prompt

    @property
    def held(self) -> bool:
        """Whether this is a beam that goes on only when the draws of all beams are known."""
        return self.request.search is not None and (
            self.in_flight > 0 or self.candidates is not None
        )

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.request.num_prompt :]

    def child(self, index: int) -> Sequence:
        """A sibling that has computed what this one has."""
        sequence = Sequence(self.request, index, list(self.token_ids))
        sequence.num_computed = self.num_computed
        sequence.grammar = None if self.grammar is None else self.grammar.copy()
        self.request.sequences.append(sequence)
        return sequence

    @property
    def is_edited(self) -> bool:
        """Whether `allowed` may ban anything."""
        return self.grammar is not None or self.request.allowed.needed

    def allowed(self) -> np.ndarray | None:
        """Bits uint32 [ceil(V / 32)] of what may be drawn next, None for anything; all zeros if
        nothing is left."""
        try:
            bits = self.request.allowed.row(self.output_token_ids)
        except NoTokenAllowed:
            return np.zeros(-(-self.request.vocab_size // 32), np.uint32)
        if self.grammar is None:
            return bits
        following = self.grammar.allowed()
        return following if bits is None else following & bits

    def accept(self, token: int) -> None:
        """One token more; it may end the sequence."""
        self.token_ids.append(token)
        self.decision = self.text.push(token)
        if self.grammar is not None and self.decision is None:
            self.grammar.accept(token)
            if self.grammar.complete:
                self.end("stop")

    def end(self, reason: str) -> None:
        if self.decision is None:
            self.decision = self.text.finish(StopDecision(reason))

    def output(self, index: int) -> CompletionOutput:
        return CompletionOutput(
            index=index,
            text=self.text.text,
            token_ids=self.output_token_ids,
            cumulative_logprob=self.cumulative_logprob if self.request.is_scored else None,
            logprobs=None if self.logprobs is None else list(self.logprobs),
            finish_reason=self.decision.finish_reason if self.decision else None,
            stop_reason=self.decision.stop_reason if self.decision else None,
        )
