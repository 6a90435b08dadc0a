"""Requests answered by beam search, and the step of many searches at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from paxkv.engine.beam import search as beams
from paxkv.engine.beam.search import BeamSearch, Hypothesis
from paxkv.engine.request import Request
from paxkv.engine.sequence import Sequence


@dataclass(eq=False)
class BeamRequest(Request):
    """A request with one sequence per running beam, and at the end one per finished beam.

    `sequences[i]` is beam i of `search`, and its tokens are the list `histories[i]` itself. Nothing
    is returned before the search ends.
    """

    is_beam_group: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.search = BeamSearch(
            self.sampling_params.children,
            self.max_tokens,
            prompt=self.sequences[0].token_ids,
            end_ids=self.rules.end_ids.keys(),
            length_penalty=self.sampling_params.length_penalty,
            early_stopping=self.sampling_params.early_stopping,
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
        """Always 0: beams are forked by the search, not when the prompt is computed."""
        return 0

    @cached_property
    def ranks_children(self) -> bool:
        """Always False: the search ranks its beams."""
        return False

    @property
    def is_scored(self) -> bool:
        return True

    @property
    def all_sampled(self) -> bool:
        """Whether every beam has its candidates, so that the search can advance."""
        return not self.ended and all(sequence.sampled for sequence in self.sequences)

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
            if sequence.finish is None:
                sequence.finish = sequence.text.push(token)
        sequence.end(reason)
        return sequence

    def _shown(self, finished: bool) -> list[Sequence]:
        return super()._shown(finished) if finished else []


@dataclass(slots=True)
class Regrouping:
    """Changes to the rows of several searches after one step of each.

    forks: (parent, child) pairs; each child's row becomes a copy of its parent's, all read first.
    born: children that have no row yet. ended: sequences that have no beam any more.
    """

    forks: list[tuple[Sequence, Sequence]] = field(default_factory=list)
    born: list[Sequence] = field(default_factory=list)
    ended: list[Sequence] = field(default_factory=list)


class Searches:
    """Candidates of each beam, by row, kept until all beams of its search have theirs.

    max_rows: rows there are. num_candidates: of each sample, at most; a model with a smaller
        vocabulary has fewer.
    """

    def __init__(self, max_rows: int, num_candidates: int) -> None:
        self._ids = np.zeros((max_rows, num_candidates), np.int32)
        self._logprobs = np.full((max_rows, num_candidates), -np.inf, np.float32)

    def take(self, sampled: list[Sequence], token_ids: np.ndarray, logprobs: np.ndarray) -> None:
        """Store candidates `[len(sampled), k]`, best first; k is the same at every call."""
        rows = np.array([sequence.row for sequence in sampled], np.int32)
        self._ids[rows, : token_ids.shape[1]] = token_ids
        self._logprobs[rows, : token_ids.shape[1]] = logprobs
        for sequence in sampled:
            sequence.sampled = True

    def step(self, requests: Iterable[BeamRequest]) -> Regrouping:
        """Advance the searches of `requests`, whose beams all have their candidates."""
        alike: dict[object, list[BeamRequest]] = {}
        for request in requests:
            alike.setdefault(request.search.shape, []).append(request)
        regrouping = Regrouping()
        for batch in alike.values():
            rows = np.array([[sequence.row for sequence in r.sequences] for r in batch], np.int32)
            searches = [request.search for request in batch]
            forks = beams.step(searches, self._ids[rows], self._logprobs[rows])
            for request, indices in zip(batch, forks):
                _follow(request, indices, regrouping)
        return regrouping


def _follow(request: BeamRequest, forks: list[tuple[int, int]], regrouping: Regrouping) -> None:
    """Rearrange the sequences of a request to match its beams."""
    search, before = request.search, request.sequences
    for sequence in before:
        sequence.sampled = False
    if search.done:
        regrouping.ended += before
        request.end("length")
        return
    regrouping.ended += before[len(search.histories) :]
    request.sequences = before[: len(search.histories)]
    for index, parent in forks:
        if index < len(before):
            child = before[index]
        else:
            child = before[0].child(index)
            child.token_ids = search.histories[index]
            regrouping.born.append(child)
        child.chain = None
        regrouping.forks.append((before[parent], child))
