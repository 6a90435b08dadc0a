"""A request that is answered by a beam search."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from paxkv.engine.beams import BeamSearch, Hypothesis
from paxkv.engine.request import Request
from paxkv.engine.sequence import Sequence


@dataclass(eq=False)
class BeamRequest(Request):
    """A sequence for each running beam, and at the end one for each beam found.

    The sequences are in the places that `search` has their beams in, and their tokens are its
    `histories` themselves. Nothing is shown before the search ends.
    """

    lockstep: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.search = BeamSearch(
            self.params.children,
            self.max_tokens,
            prompt=self.sequences[0].token_ids,
            end_ids=self.rules.end_ids.keys(),
            length_penalty=self.params.length_penalty,
            early_stopping=self.params.early_stopping,
            text=self.sequences[0].text if self.rules.strings else None,
        )

    @cached_property
    def end_words(self) -> np.ndarray:
        """Bits uint32 [ceil(V / 32)] of the tokens that end a beam."""
        bits = np.zeros(-(-self.vocab_size // 32) * 32, np.bool_)
        bits[[token for token in self.rules.end_ids if token < self.vocab_size]] = True
        return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)

    @property
    def forks(self) -> int:
        """None: beams are born of candidates."""
        return 0

    @cached_property
    def ranks_children(self) -> bool:
        """No: beams are ranked by their own rule."""
        return False

    @property
    def is_scored(self) -> bool:
        return True

    @property
    def all_drawn(self) -> bool:
        """Whether every beam has its candidates, so that the search can go on."""
        return not self.ended and all(sequence.drawn for sequence in self.sequences)

    def end(self, reason: str) -> None:
        super().end(reason)
        self.search.close()
        found = enumerate(self.search.finished)
        self.sequences = [self._found(beam, index, reason) for index, beam in found] or (
            self.sequences[:1]
        )

    def cut(self, sequence: Sequence) -> None:
        self.end("length")

    def _found(self, beam: Hypothesis, index: int, reason: str) -> Sequence:
        """The sequence of a finished beam; `reason` holds unless its tokens ended it."""
        sequence = Sequence(self, index, [*self.prompt_token_ids, *beam.token_ids])
        sequence.cumulative_logprob = beam.logprob
        for token in beam.token_ids:
            if sequence.decision is None:
                sequence.decision = sequence.text.push(token)
        sequence.end(reason)
        return sequence

    def _shown(self, finished: bool) -> list[Sequence]:
        return super()._shown(finished) if finished else []
