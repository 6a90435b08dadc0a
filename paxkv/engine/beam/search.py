"""Beam search on the host: candidates in, running and finished beams out.

The rule is Hugging Face transformers' (`GenerationMixin._beam_search`, 5.24), in float32 as there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paxkv.text.stop import SequenceText

Float32Array = NDArray[np.float32]
IndexArray = NDArray[np.int64]


@dataclass(frozen=True)
class Hypothesis:
    """A finished beam: its output, the sum of its log-probabilities, and its score."""

    token_ids: list[int]
    logprob: float
    score: np.float32


class BeamSearch:
    """The beams of one request; `step` advances many such searches at once.

    Among the candidates of a step (every beam with every token), those that end and are among
    the `width` best are finished; the `width` best of those that do not end stay in the search.

    Args:
        width: beams wanted, finished ones too. One beam is greedy search, as in transformers.
        max_tokens: a beam of so many tokens has finished.
        prompt: what all beams begin with; the list becomes the first history.
        end_ids: tokens that finish a beam.
        length_penalty: a finished beam's score is its log-probability divided by its length to
            this power.
        early_stopping: True ends the search at `width` finished beams; False when the best running
            beam, scored at its present length, is no better than the worst finished one; "never"
            when it could not be better at its final length.
        text: of the output so far, if there are stop strings; one that a candidate completes
            finishes it like an end id. None without any.

    Attributes:
        histories: prompt and tokens of each running beam. At first there is one beam.
        logprobs: float32 `[len(histories)]`, the sum of each one's log-probabilities.
        finished: at most `width`, best first.
        done: nothing can change any more.
    """

    def __init__(
        self,
        width: int,
        max_tokens: int,
        *,
        prompt: list[int],
        end_ids: Collection[int] = (),
        length_penalty: float = 1.0,
        early_stopping: bool | Literal["never"] = False,
        text: SequenceText | None = None,
    ) -> None:
        self.width = width
        self.max_tokens = max_tokens
        self.end_ids = tuple(sorted(end_ids))
        self.penalty = length_penalty
        self._first_are_enough = early_stopping is True or width == 1
        self._looks_ahead = early_stopping == "never" and length_penalty > 0
        self._num_prompt = len(prompt)
        self.histories: list[list[int]] = [prompt]
        self.logprobs: Float32Array = np.zeros(1, np.float32)
        self.finished: list[Hypothesis] = []
        self.done = False
        self._texts = None if text is None else [text]

    @property
    def shape(self) -> tuple[int, int, tuple[int, ...]]:
        """Key of searches that can take a step together."""
        return len(self.histories), self.width, self.end_ids

    @property
    def has_stop_strings(self) -> bool:
        return self._texts is not None

    @property
    def length(self) -> int:
        """Output tokens of every running beam."""
        return len(self.histories[0]) - self._num_prompt

    def output(self, index: int) -> list[int]:
        """Output tokens of beam `index`; a copy."""
        return self.histories[index][self._num_prompt :]

    def close(self) -> None:
        """End the search now; running beams finish at their present length."""
        if not self.done and self.length:
            outputs = map(self.output, range(len(self.histories)))
            self.finish(list(zip(outputs, self.logprobs.tolist())))
        self.done = True

    def finish(self, beams: list[tuple[list[int], float]]) -> None:
        """Add finished beams, each an output and its log-probability; keep the best."""
        scores = _scores(
            np.array([logprob for _, logprob in beams], np.float32),
            np.array([len(output) for output, _ in beams]),
            np.array(self.penalty),
        )
        found = [Hypothesis(*beam, score) for beam, score in zip(beams, scores)]
        self.finished = sorted(self.finished + found, key=lambda h: -h.score)[: self.width]

    def meets_stop_string(self, parent: int, token: int) -> bool:
        """Whether `token` after beam `parent` completes a stop string."""
        assert self._texts is not None
        return self._texts[parent].followed_by(token).finish is not None

    def advance(
        self, moves: list[tuple[int, int]], tokens: list[int], logprobs: Float32Array
    ) -> None:
        """Apply moves (beam, parent): beams ascending, and no parent is itself moved. Then append
        a token to each of the first `len(tokens)` beams and drop the rest."""
        if self._texts is not None:
            came = dict(moves)
            self._texts = [
                self._texts[came.get(index, index)].followed_by(token)
                for index, token in enumerate(tokens)
            ]
        histories, start = self.histories, self._num_prompt
        for index, parent in moves:
            if index < len(histories):
                histories[index][start:] = histories[parent][start:]
            else:
                histories.append(histories[parent].copy())
        if len(tokens) < len(histories):
            del histories[len(tokens) :]
        for history, token in zip(histories, tokens):
            history.append(token)
        self.logprobs = logprobs

    @property
    def decisive_length(self) -> int | None:
        """The length at which the best running beam must beat the worst finished one for the
        search to continue; 0 if none could, None while too few have finished."""
        if len(self.finished) < self.width:
            return None
        if self._first_are_enough:
            return 0
        return self.max_tokens if self._looks_ahead else self.length


def step(
    searches: Sequence[BeamSearch], token_ids: NDArray[np.integer], logprobs: Float32Array
) -> list[list[tuple[int, int]]]:
    """Advance every beam of searches of one `shape` by a token.

    Args:
        token_ids, logprobs: `[len(searches), beams, k]`, next tokens of each beam in any order:
            the `width` most likely of its `end_ids`, and the `2 * width` most likely others, or as
            many as there are. Those of log-probability -inf do not count.

    Returns:
        For each search the places whose beam is now the child of another, with that parent's
        place, ascending. A parent keeps its own place once, where it can. Beams are fewer than
        `width` while candidates are, and none when all have ended.
    """
    _, width, end_ids = searches[0].shape
    columns = logprobs.shape[2]
    totals = np.stack([search.logprobs for search in searches])[:, :, None]
    totals = (totals + logprobs).reshape(len(searches), -1)
    # As many as transformers looks at. Every beam has each end once, so that among these are
    # `width` that do not end, unless they complete stop strings.
    order = np.argsort(-totals, axis=1, kind="stable")[:, : width * max(2, 1 + len(end_ids))]
    totals = np.take_along_axis(totals, order, axis=1)
    parents = order // columns
    tokens = token_ids[np.arange(len(searches))[:, None], parents, order % columns]
    last = np.array([search.length + 1 == search.max_tokens for search in searches])
    ends = np.isin(tokens, end_ids) | last[:, None]
    possible = totals > -np.inf
    for index, search in enumerate(searches):
        if search.has_stop_strings:
            for at in np.flatnonzero(possible[index] & ~ends[index]).tolist():
                parent, token = int(parents[index, at]), int(tokens[index, at])
                ends[index, at] = search.meets_stop_string(parent, token)
    for index, rank in _by_row(possible[:, :width] & ends[:, :width]):
        search = searches[index]
        outputs = [search.output(parent) for parent in parents[index, rank].tolist()]
        for output, token in zip(outputs, tokens[index, rank].tolist()):
            output.append(token)
        search.finish(list(zip(outputs, totals[index, rank].tolist())))
    goes = possible & ~ends
    goes &= np.cumsum(goes, axis=1) <= width
    return _go_on(searches, goes, parents, tokens, totals)


def _by_row(chosen: NDArray[np.bool_]) -> list[tuple[int, IndexArray]]:
    return [(row, np.flatnonzero(chosen[row])) for row in np.flatnonzero(chosen.any(1)).tolist()]


def _go_on(
    searches: Sequence[BeamSearch],
    goes: NDArray[np.bool_],
    parents: IndexArray,
    tokens: NDArray[np.integer],
    totals: Float32Array,
) -> list[list[tuple[int, int]]]:
    counts = np.count_nonzero(goes, axis=1)
    rows, ranks = np.nonzero(goes)
    indices = _places(rows, parents[rows, ranks], counts)
    order = np.lexsort((indices, rows))
    rows, ranks, indices = rows[order], ranks[order], indices[order]
    came = parents[rows, ranks]
    moved = np.flatnonzero(came != indices)
    moves = list(zip(indices[moved].tolist(), came[moved].tolist()))
    forks = _parted(moves, np.bincount(rows[moved], minlength=len(searches)))
    going = _parted(tokens[rows, ranks].tolist(), counts)
    sums = _parted(totals[rows, ranks], counts)
    for search, its_moves, its_tokens, logprobs in zip(searches, forks, going, sums):
        search.advance(its_moves, its_tokens, logprobs)
    _end_those_that_are_over(searches)
    return forks


def _parted(items: Any, counts: IndexArray) -> list[Any]:
    """Split `items` into consecutive lists of `counts[i]`."""
    ends = np.cumsum(counts).tolist()
    return [items[start:end] for start, end in zip([0, *ends], ends)]


def _places(rows: IndexArray, parents: IndexArray, counts: IndexArray) -> IndexArray:
    """Index of each surviving beam, in the order of `rows`: the first child of a parent takes the
    parent's index, the others take the free ones."""
    most = max(1, int(counts.max(initial=0)), int(parents.max(initial=0)) + 1)
    _, first = np.unique(rows * most + parents, return_index=True)
    first = first[parents[first] < counts[rows[first]]]
    vacant = np.arange(most) < counts[:, None]
    vacant[rows[first], parents[first]] = False
    indices = parents.copy()
    others = np.delete(np.arange(len(rows)), first)
    indices[others] = np.nonzero(vacant)[1]
    return indices


def _end_those_that_are_over(searches: Sequence[BeamSearch]) -> None:
    full = []
    for search in searches:
        if not len(search.logprobs):
            search.done = True
        elif (length := search.decisive_length) is not None:
            full.append((search, length))
    if not full:
        return
    best = np.array([search.logprobs.max() for search, _ in full], np.float32)
    worst = np.array([search.finished[-1].score for search, _ in full], np.float32)
    lengths = np.array([length for _, length in full])
    scores = _scores(best, lengths, np.array([search.penalty for search, _ in full]))
    for (search, _), better in zip(full, ((scores > worst) & (lengths > 0)).tolist()):
        search.done = not better


def _scores(
    logprobs: Float32Array, lengths: NDArray[np.integer], penalties: NDArray[np.floating]
) -> Float32Array:
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return logprobs / np.power(lengths.astype(np.float64), penalties).astype(np.float32)
