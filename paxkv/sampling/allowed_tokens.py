"""AllowedTokens: which tokens a request may sample next, as bits for the device."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from paxkv.sampling.sampling_params import SamplingParams


class NoTokenAllowed(ValueError):
    """Error of a request to which bans and allowed_token_ids leave no token."""


def bad_word_sequences(
    bad_words: Iterable[str], encode: Callable[[str], Sequence[int]]
) -> list[tuple[int, ...]]:
    """The token sequences of each word, at the start of a text and behind a space.

    encode: text to ids, without special tokens. A word met under another split into tokens is
    not recognized (as in vLLM).
    """
    sequences: dict[tuple[int, ...], None] = {}
    for word in bad_words:
        for text in (word, " " + word.lstrip()):
            ids = tuple(encode(text))
            if ids:
                sequences[ids] = None
    return list(sequences)


def token_bits(token_ids: Collection[int], vocab_size: int) -> np.ndarray:
    """Bits uint32 [ceil(V / 32)] of these tokens, not to be written to; ids beyond V have none."""
    chosen = np.zeros(-(-vocab_size // 32) * 32, np.bool_)
    chosen[[token for token in token_ids if token < vocab_size]] = True
    words = np.packbits(chosen, bitorder="little").view("<u4").astype(np.uint32)
    words.flags.writeable = False
    return words


class AllowedTokens:
    """The ban list of one request; stateless, so that all its children share it.

    vocab_size: width of the logits. end_ids: what would end the request; none of them is sampled
    before min_tokens. bad_sequences: `bad_word_sequences`; the last token of one is banned where
    the output ends with those before it. Raises NoTokenAllowed if allowed_token_ids are all
    end ids that min_tokens bans, or all bad words of one token.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        end_ids: Collection[int] = (),
        bad_sequences: Sequence[Sequence[int]] = (),
    ) -> None:
        self._min_tokens = params.min_tokens if end_ids else 0
        self._longer: list[tuple[tuple[int, ...], int]] = [
            (tuple(sequence[:-1]), sequence[-1]) for sequence in bad_sequences if len(sequence) > 1
        ]
        single = [sequence[0] for sequence in bad_sequences if len(sequence) == 1]
        allowed = params.allowed_token_ids
        always = np.zeros(-(-vocab_size // 32) * 32, np.bool_)
        always[:vocab_size] = allowed is None
        always[list(allowed or ())] = True
        always[single] = False
        early = always.copy()
        early[[token for token in end_ids if token < vocab_size]] = False
        self._neutral = allowed is None and not single
        self._always = _packed(always)
        self._early = _packed(early) if self._min_tokens else self._always
        self.needed = not self._neutral or bool(self._longer) or self._min_tokens > 0
        """Whether `row` can ever ban anything."""

    def row(self, output_ids: Sequence[int]) -> np.ndarray | None:
        """Bits uint32 [ceil(V / 32)] for the token after `output_ids`, not to be written to;
        None if nothing is banned there. Raises NoTokenAllowed if nothing is left."""
        early = len(output_ids) < self._min_tokens
        words = self._early if early else self._always
        banned = [last for before, last in self._longer if _ends_with(output_ids, before)]
        if not banned:
            return words if early or not self._neutral else None
        words = words.copy()
        for token in banned:
            words[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)
        if not words.any():
            raise NoTokenAllowed("bad_words and allowed_token_ids leave no token to sample")
        return words


def _packed(allowed: np.ndarray) -> np.ndarray:
    if not allowed.any():
        raise NoTokenAllowed("bad_words, min_tokens and allowed_token_ids leave no token to sample")
    words = np.packbits(allowed, bitorder="little").view("<u4").astype(np.uint32)
    words.flags.writeable = False
    return words


def _ends_with(output_ids: Sequence[int], before: tuple[int, ...]) -> bool:
    return tuple(output_ids[-len(before) :]) == before
