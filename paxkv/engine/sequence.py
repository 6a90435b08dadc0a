"""A sequence: the prompt and one answer of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paxkv.memory import HashChain, Swapped
from paxkv.outputs import CompletionOutput, TokenLogprobs
from paxkv.sampling.allowed_tokens import NoTokenAllowed
from paxkv.text.detokenizer import Detokenizer
from paxkv.text.stop import Finish, SequenceText

if TYPE_CHECKING:
    from paxkv.engine.request import Request


class Sequence:
    """A prompt and one answer to it.

    Attributes:
        token_ids: prompt and committed output.
        num_computed: tokens whose keys and values are in the pages once the steps issued so far
            have run.
        in_flight: tokens sampled on device, or about to be, that the host has not seen.
        row: of the block table and every other per-sequence array, None while not running.
        swapped: its pages in host memory, None while not there.
        sampled: whether this beam has its candidates, and waits for the other beams.
        displaced_at: tokens it had when one of higher priority last took its place, or -1.
        shared_prefix: of a preempted beam: another one and the number of leading blocks they share.
    """

    __slots__ = (
        "chain",
        "cumulative_logprob",
        "displaced_at",
        "finish",
        "grammar",
        "in_flight",
        "index",
        "logprobs",
        "num_computed",
        "num_resumed",
        "request",
        "row",
        "sampled",
        "shared_prefix",
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
        self.sampled = False
        self.shared_prefix: tuple[Sequence, int] | None = None
        self.finish: Finish | None = None
        self.displaced_at = -1
        self.grammar = None if request.grammar is None else request.grammar.copy()
        self.cumulative_logprob = 0.0
        self.logprobs: list[TokenLogprobs] | None = None
        if request.sampling_params.logprobs is not None:
            self.logprobs = []
        detokenizer = None
        if request.tokenizer is not None and request.sampling_params.detokenize:
            detokenizer = Detokenizer(
                request.tokenizer.backend,
                skip_special_tokens=request.sampling_params.skip_special_tokens,
                context=request.prompt_token_ids if request.detokenizer_context else (),
            )
        self.text = SequenceText(request.rules, detokenizer)

    @property
    def num_remaining(self) -> int:
        """Tokens to compute before the next one can be sampled, those in flight included."""
        return len(self.token_ids) + self.in_flight - self.num_computed

    @property
    def num_output(self) -> int:
        """Tokens sampled, those in flight included."""
        return len(self.token_ids) + self.in_flight - self.request.num_prompt

    @property
    def group(self) -> list[Sequence]:
        """Sequences that advance, are preempted and end only together: beams, or this one alone."""
        return self.request.sequences if self.request.is_beam_group else [self]

    @property
    def held(self) -> bool:
        """Whether this beam waits until all beams of its group have their candidates."""
        return self.request.is_beam_group and (self.in_flight > 0 or self.sampled)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.request.num_prompt :]

    def child(self, index: int) -> Sequence:
        """Fork a sibling that has computed the same tokens."""
        sequence = Sequence(self.request, index, list(self.token_ids))
        sequence.num_computed = self.num_computed
        sequence.displaced_at = self.displaced_at
        sequence.grammar = None if self.grammar is None else self.grammar.copy()
        self.request.sequences.append(sequence)
        return sequence

    @property
    def is_edited(self) -> bool:
        """Whether `allowed` may ban anything."""
        return self.grammar is not None or self.request.allowed.needed

    def allowed(self) -> np.ndarray | None:
        """Bits uint32 [ceil(V / 32)] of what may be sampled next, None for anything; all zeros if
        nothing is left."""
        try:
            bits = self.request.allowed.row(self.output_token_ids)
        except NoTokenAllowed:
            return np.zeros(-(-self.request.vocab_size // 32), np.uint32)
        if self.grammar is None:
            return bits
        following = self.grammar.allowed(self.request.end_bits)
        return following if bits is None else following & bits

    def accept(self, token: int) -> None:
        """Append a sampled token; may finish the sequence."""
        self.token_ids.append(token)
        self.finish = self.text.push(token)
        if self.grammar is not None and self.finish is None:
            self.grammar.accept(token)
            if self.grammar.complete:
                self.end("stop")

    def end(self, reason: str) -> None:
        if self.finish is None:
            self.finish = self.text.close(Finish(reason))

    def output(self, index: int) -> CompletionOutput:
        return CompletionOutput(
            index=index,
            text=self.text.text,
            token_ids=self.output_token_ids,
            cumulative_logprob=self.cumulative_logprob if self.request.is_scored else None,
            logprobs=None if self.logprobs is None else list(self.logprobs),
            finish_reason=self.finish.finish_reason if self.finish else None,
            stop_reason=self.finish.stop_reason if self.finish else None,
        )
