"""The rule of beam search, on the host alone: candidates in, surviving and finished beams out.

It is Hugging Face transformers' (`GenerationMixin._beam_search`, 5.24), in float32 like theirs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]
Candidate = tuple[int, int, float]
"""Place of the parent, token, and the sum of log-probabilities with it."""


@dataclass(frozen=True)
class Hypothesis:
    """A finished beam: its output, the sum of its log-probabilities, and what it is ranked by."""

    token_ids: list[int]
    logprob: float
    score: np.float32


class BeamSearch:
    """The beams of one request.

    Among the candidates of a step (every beam with every token), those that end and are among
    the `width` best are finished; the `width` best of those that do not end go on.

    Args:
        width: beams wanted, finished ones too. One beam is greedy search, as in transformers.
        max_tokens: a beam of so many tokens has finished.
        end_ids: tokens that finish a beam.
        length_penalty: a finished beam's score is its log-probability divided by its length to
            this power.
        early_stopping: True ends the search at `width` finished beams; False when the best running
            beam, scored at its present length, is no better than the worst finished one; "never"
            when it could not be better at its final length.

    Attributes:
        outputs: tokens of each running beam. At first there is one, without any.
        logprobs: float32 `[len(outputs)]`, the sum of each one's log-probabilities.
        finished: at most `width`, best first.
        done: nothing can change any more.
    """

    def __init__(
        self,
        width: int,
        max_tokens: int,
        *,
        end_ids: Collection[int] = (),
        length_penalty: float = 1.0,
        early_stopping: bool | Literal["never"] = False,
    ) -> None:
        self.width = width
        self._max_tokens = max_tokens
        self._end_ids = end_ids
        self._penalty = length_penalty
        self._first_are_enough = early_stopping is True or width == 1
        self._looks_ahead = early_stopping == "never" and length_penalty > 0
        self.outputs: list[list[int]] = [[]]
        self.logprobs: Float32Array = np.zeros(1, np.float32)
        self.finished: list[Hypothesis] = []
        self.done = False

    @property
    def length(self) -> int:
        """Tokens of every running beam."""
        return len(self.outputs[0])

    def step(self, token_ids: NDArray[np.integer], logprobs: Float32Array) -> list[int]:
        """Advance every beam by a token.

        Args:
            token_ids, logprobs: `[len(outputs), k]`, the most likely next tokens of each beam,
                best first; at least `width` of them and as many more as there are `end_ids`, or
                the whole vocabulary. Those of log-probability -inf do not count.

        Returns:
            For each beam that runs now, the place of its parent among those that ran before. A
            parent keeps its own place once, where it can. Beams are fewer than `width` while
            candidates are.
        """
        columns = min(logprobs.shape[1], self.width + len(self._end_ids))
        totals = (self.logprobs[:, None] + logprobs[:, :columns]).ravel()
        # Every beam has each end once, so that among these are `width` that do not end.
        order = np.argsort(-totals, kind="stable")[: self.width * (1 + len(self._end_ids))]
        origins, places = np.divmod(order, columns)
        candidates = zip(
            origins.tolist(), token_ids[origins, places].tolist(), totals[order].tolist()
        )
        last = self.length + 1 == self._max_tokens
        going: list[Candidate] = []
        ended: list[Candidate] = []
        for rank, candidate in enumerate(candidates):
            _, token, total = candidate
            enough = rank >= self.width and (last or len(going) == self.width)
            if enough or total == -np.inf:
                break
            if not last and token not in self._end_ids:
                going.append(candidate)
            elif rank < self.width:
                ended.append(candidate)
        self._finish([([*self.outputs[parent], token], total) for parent, token, total in ended])
        going = _in_place(going)
        outputs = []
        for place, (parent, _, _) in enumerate(going):
            output = self.outputs[parent]
            outputs.append(output if parent == place else output.copy())
        for output, (_, token, _) in zip(outputs, going):
            output.append(token)
        self.outputs = outputs
        self.logprobs = np.array([total for _, _, total in going], np.float32)
        self.done = not going or self._is_over()
        return [parent for parent, _, _ in going]

    def close(self) -> None:
        """End now: running beams count as finished at their present length."""
        if not self.done and self.length:
            self._finish(list(zip(self.outputs, self.logprobs.tolist())))
        self.done = True

    def _finish(self, beams: list[tuple[list[int], float]]) -> None:
        if not beams:
            return
        found = [
            Hypothesis(output, logprob, self._score(logprob, len(output)))
            for output, logprob in beams
        ]
        self.finished = sorted(self.finished + found, key=lambda h: -h.score)[: self.width]

    def _score(self, logprob: float, length: int) -> np.float32:
        with np.errstate(over="ignore", divide="ignore"):
            return np.float32(logprob) / np.float32(np.power(float(length), self._penalty))

    def _is_over(self) -> bool:
        if len(self.finished) < self.width:
            return False
        if self._first_are_enough:
            return True
        length = self._max_tokens if self._looks_ahead else self.length
        return not self._score(float(self.logprobs.max()), length) > self.finished[-1].score


def _in_place(beams: list[Candidate]) -> list[Candidate]:
    """`beams` ordered so that the first child of each parent stands in its parent's place."""
    placed: list[Candidate | None] = [None] * len(beams)
    moved = []
    for beam in beams:
        parent = beam[0]
        if parent < len(placed) and placed[parent] is None:
            placed[parent] = beam
        else:
            moved.append(beam)
    rest = iter(moved)
    return [next(rest) if beam is None else beam for beam in placed]
