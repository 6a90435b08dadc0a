"""Embedding requests: a vector that stands for a prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from paxkv import validation as checks
from paxkv.engine.request import Request
from paxkv.outputs import EmbeddingOutput, EmbeddingRequestOutput


@dataclass(frozen=True, kw_only=True)
class PoolingParams:
    """Options that turn hidden states into one vector.

    pooling: "last", the last token's, or "mean", over all tokens of the prompt. normalize: to
    length 1. Raises ValueError naming a wrong value.
    """

    pooling: Literal["last", "mean"] = "last"
    normalize: bool = True

    def __post_init__(self) -> None:
        if self.pooling not in ("last", "mean"):
            raise checks.refuse("pooling", self.pooling, '"last" or "mean"')
        checks.boolean("normalize", self.normalize)


@dataclass(eq=False)
class EmbeddingRequest(Request):
    """A request for a vector. Its prompt is computed like any other; its one token is discarded.

    The hidden states are those after the final norm, from which logits are computed.
    """

    generates: ClassVar[bool] = False

    pooling: PoolingParams = field(default_factory=PoolingParams)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sum: NDArray[np.float64] | None = None
        self.num_pooled = 0

    @cached_property
    def wants_hidden(self) -> bool:
        return self.pooling.pooling == "mean"

    def pool(self, hidden: np.ndarray, num_tokens: int) -> None:
        """Add the sum `[hidden_size]` of the hidden states of the next `num_tokens` tokens."""
        before = 0.0 if self._sum is None else self._sum
        self._sum = before + np.asarray(hidden, np.float64)
        self.num_pooled += num_tokens

    @property
    def embedding(self) -> NDArray[np.float32]:
        """The vector `[hidden_size]`, once the request has finished without an error."""
        assert self._sum is not None
        vector = self._sum / self.num_pooled
        if self.pooling.normalize:
            vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
        return vector.astype(np.float32)

    def embedding_output(self) -> EmbeddingRequestOutput:
        """Return the finished vector. Raises RuntimeError if the request has failed."""
        if self.error is not None:
            raise RuntimeError(f"request {self.request_id}: {self.error}")
        return EmbeddingRequestOutput(
            request_id=self.request_id,
            outputs=EmbeddingOutput(self.embedding.tolist()),
            prompt_token_ids=self.prompt_token_ids,
            finished=self.finished,
            num_cached_tokens=self.num_cached_tokens,
        )
