"""Which tokens a sequence may draw next, as bits."""

from __future__ import annotations

import numpy as np

from paxkv.engine.request import Request, Sequence
from paxkv.sampling.logit_edits import ALL_ALLOWED


def restricts(request: Request) -> bool:
    """Whether any token of this request can ever be forbidden."""
    params = request.params
    return bool(params.allowed_token_ids is not None or request.bad_words or params.min_tokens)


def allowed_tokens(sequence: Sequence) -> np.ndarray | None:
    """uint32 `[ceil(vocab_size / 32)]`, bit set where the token may be drawn; None if all may."""
    request = sequence.request
    params = request.params
    banned: list[int] = []
    output = sequence.output_token_ids
    if len(output) < params.min_tokens:
        banned.extend(request.rules.end_ids)
    for word in request.bad_words:
        before = len(word) - 1
        if before <= len(output) and tuple(output[len(output) - before :]) == word[:-1]:
            banned.append(word[-1])
    if params.allowed_token_ids is None and not banned:
        return None
    words = -(-request.vocab_size // 32)
    if params.allowed_token_ids is None:
        bits = np.full(words, ALL_ALLOWED, np.uint32)
    else:
        bits = np.zeros(words, np.uint32)
        ids = np.asarray(params.allowed_token_ids, np.int64)
        np.bitwise_or.at(bits, ids // 32, np.uint32(1) << (ids % 32).astype(np.uint32))
    for token in banned:
        bits[token // 32] &= ~(np.uint32(1) << np.uint32(token % 32))
    return bits


def only(token_id: int, vocab_size: int) -> np.ndarray:
    """Bits that allow one token."""
    bits = np.zeros(-(-vocab_size // 32), np.uint32)
    bits[token_id // 32] = np.uint32(1) << np.uint32(token_id % 32)
    return bits
