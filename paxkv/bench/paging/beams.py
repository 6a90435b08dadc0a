"""Beam search on block tables alone: which beams survive is drawn from a model of next tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paxkv.bench.paging.trace import Lengths
from paxkv.memory import BlockManager

Floats = NDArray[np.float64]
SCALE = 5.6


@dataclass(frozen=True)
class NextTokens:
    """Log-probabilities of the best next tokens, as a language model's are spread.

    Logits are normal, `vocab_size` of them with the deviation `scale`; the default leaves 2.3 nats
    of entropy, the perplexity of 10 that OPT-13B, the paper's model, has on WikiText-2.

    alike: whether the beams of a request all have the same next tokens at a step, or each its own.
        Beams of a language model resemble each other without being equal, so what they share lies
        between the two.
    """

    alike: bool = False
    vocab_size: int = 32_000
    scale: float = SCALE
    num_distributions: int = 256

    def draw(self, width: int, seed: int = 0) -> tuple[Floats, float]:
        """The `width` largest of each distribution, `[num_distributions, width]`, and their mean
        entropy in nats."""
        random = np.random.default_rng(seed)
        best = np.empty((self.num_distributions, width))
        entropy = 0.0
        for row in best:
            logits = self.scale * random.standard_normal(self.vocab_size)
            logits -= np.log(np.exp(logits - logits.max()).sum()) + logits.max()
            row[:] = -np.sort(np.partition(-logits, width - 1)[:width])
            entropy -= float((np.exp(logits) * logits).sum())
        return best, entropy / self.num_distributions


class BeamGroup:
    """The beams of several requests, each on its own `width` rows of one block manager."""

    def __init__(self, memory: BlockManager, requests: Sequence[Lengths], width: int) -> None:
        self._memory = memory
        self._width = width
        self._rows = np.zeros((len(requests), width), np.int32)
        self._scores = np.zeros((len(requests), width))
        self._left = np.array([lengths.output for lengths in requests])
        for place, lengths in enumerate(requests):
            admission = memory.admit([0] * lengths.prompt, use_cache=False, publish=False)
            if admission is None:
                raise ValueError("the pool is too small for the prompts of all requests")
            self._rows[place, 0] = admission.row
            if width > 1:
                children = memory.fork(admission.row, width - 1)
                if children is None:
                    raise ValueError("max_rows is too small for the beams of all requests")
                self._rows[place, 1:] = children
        self._scores[:, 1:] = -np.inf

    @property
    def rows(self) -> NDArray[np.int32]:
        """Rows of the beams that still run."""
        return self._rows[self._left > 0].ravel()

    def step(self, best: Floats, random: np.random.Generator, alike: bool = False) -> None:
        """Every beam takes its token's slot; survivors take over the tables of their parents."""
        running = np.flatnonzero(self._left > 0)
        rows = self._rows[running]
        self._memory.append_batch(rows.ravel())
        self._memory.take_copies()
        self._memory.take_patches()
        self._left[running] -= 1
        ended = rows[self._left[running] == 0]
        if len(ended):
            self._memory.free_rows(ended.ravel())
        running = running[self._left[running] > 0]
        if not len(running) or self._width == 1:
            return
        drawn = random.integers(len(best), size=(len(running), 1 if alike else self._width))
        chosen = best[drawn]
        candidates = (self._scores[running][:, :, None] + chosen).reshape(len(running), -1)
        order = np.argsort(-candidates, axis=1, kind="stable")[:, : self._width]
        self._scores[running] = np.take_along_axis(candidates, order, axis=1)
        parents = np.sort(order // best.shape[1], axis=1)
        rows = self._rows[running]
        sources = np.take_along_axis(rows, self._placed(parents), axis=1)
        self._memory.fork_rows(sources.ravel(), rows.ravel())

    def _placed(self, parents: NDArray[np.intp]) -> NDArray[np.intp]:
        """Each surviving parent keeps its own place once, so that its table need not move."""
        placed = np.tile(np.arange(self._width), (len(parents), 1))
        for row, chosen in zip(placed, parents):
            survivors, counts = np.unique(chosen, return_counts=True)
            vacant = np.setdiff1d(np.arange(self._width), survivors)
            row[vacant] = np.repeat(survivors, counts - 1)
        return placed
