"""A made-up language: what a language model could have to say next, without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

SCALE = 5.6
# What fits SmolLM2's own beams best (benchmarks/results/beam_sharing.json).
LIKENESS = 0.9
CONTEXT = 2


@dataclass(frozen=True)
class Language:
    """Next tokens that are spread as a language model's are.

    Logits are normal, `vocab_size` of them with the deviation `scale`; the default leaves 2.3 nats
    of entropy, the perplexity of 10 that OPT-13B, the PagedAttention paper's model, has on
    WikiText-2. Texts on one topic resemble each other: at a share `likeness` of all positions they
    all go on alike, elsewhere only those that end in the same two tokens.

    num_candidates: tokens known after each context. num_contexts: that differ; more share them.
    """

    num_candidates: int
    likeness: float = LIKENESS
    vocab_size: int = 32_000
    scale: float = SCALE
    num_contexts: int = 512
    seed: int = 0

    @cached_property
    def _drawn(self) -> tuple[NDArray[np.int32], NDArray[np.float32], float]:
        random = np.random.default_rng(self.seed)
        ids = np.empty((self.num_contexts, self.num_candidates), np.int32)
        logprobs = np.empty(ids.shape, np.float32)
        entropy = 0.0
        for place in range(self.num_contexts):
            logits = self.scale * random.standard_normal(self.vocab_size)
            logits -= np.log(np.exp(logits - logits.max()).sum()) + logits.max()
            best = np.argpartition(-logits, self.num_candidates - 1)[: self.num_candidates]
            ids[place] = best[np.argsort(-logits[best])]
            logprobs[place] = logits[ids[place]]
            entropy -= float((np.exp(logits) * logits).sum())
        return ids, logprobs, entropy / self.num_contexts

    @property
    def entropy(self) -> float:
        """Mean over the contexts, in nats."""
        return self._drawn[2]

    def candidates(
        self, texts: Sequence[tuple[int, list[int]]]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Next tokens, best first, and their log-probabilities, `[len(texts), num_candidates]`.

        texts: a topic, that of the request, and the tokens so far.
        """
        ids, logprobs, _ = self._drawn
        contexts = [self._context(topic, tokens) for topic, tokens in texts]
        return ids[contexts], logprobs[contexts]

    def _context(self, topic: int, tokens: list[int]) -> int:
        place = hash((topic, len(tokens)))
        if place % 1024 < self.likeness * 1024:
            return place // 1024 % self.num_contexts
        return hash((topic, *tokens[-CONTEXT:])) % self.num_contexts
