"""Outputs of requests, under vLLM's field names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isinf
from typing import Any


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's log-probability under the model's raw distribution.

    rank: 1 for the most likely token. decoded_token: display text, None without a tokenizer.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


TokenLogprobs = dict[int, Logprob]


def token_logprobs(
    token_id: int,
    logprob: float,
    rank: int,
    top_ids: Sequence[int] = (),
    top_values: Sequence[float] = (),
    decode: Callable[[list[int]], list[str]] | None = None,
) -> TokenLogprobs:
    """One position's entries: its token first, then the alternatives by rank, none twice.

    top_ids, top_values: the request's number of most likely tokens, best first; entries of
    probability zero are left out. decode: display text of each of the ids given, on its own.
    """
    entries = {token_id: (float(logprob), int(rank))}
    for place, (other, value) in enumerate(zip(top_ids, top_values, strict=True), start=1):
        if other != token_id and not isinf(value):
            entries[int(other)] = (float(value), place)
    texts = decode(list(entries)) if decode is not None else [None] * len(entries)
    return {
        token: Logprob(value, place, text)
        for (token, (value, place)), text in zip(entries.items(), texts, strict=True)
    }


@dataclass(slots=True)
class CompletionOutput:
    """One generated sequence.

    token_ids include the token that ended the sequence. logprobs, one entry per token, are None
    unless asked for. finish_reason: "stop", "length", "abort", "error", or None while running.
    stop_reason: the stop string or stop token id met, None for an end-of-sequence token.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class EmbeddingOutput:
    """embedding: `hidden_size` numbers."""

    embedding: list[float]


@dataclass(slots=True)
class EmbeddingRequestOutput:
    """One prompt and the vector that stands for it."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool
    num_cached_tokens: int = 0


@dataclass(slots=True)
class RequestOutput:
    """One request: its prompt and its generated sequences, best or lowest index first.

    outputs: none of a beam search before it has ended.
    prompt_logprobs: one entry per prompt token, the first of which is None.
    num_cached_tokens: prompt tokens read from the prefix cache. metrics: times in seconds.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int = 0
    metrics: dict[str, Any] | None = field(default=None, repr=False)
