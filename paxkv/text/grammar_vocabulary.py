"""GrammarVocabulary: the tokens of a model as llguidance reads them."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection

import tokenizers
from tokenizers import normalizers, pre_tokenizers

from paxkv.text.tokenizer import Tokenizer

FORCED_CHARACTERS = 256


class GrammarVocabulary:
    """Spell literals in ordinary tokens, and keep the end of an answer apart from its text.

    A special token, or one that ends an answer, never stands for its text. The end is a token of
    its own behind the vocabulary, which no model has: whether an answer may end does not depend
    on which tokens end it. The attributes are those that llguidance asks for.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: Collection[int]) -> None:
        self.tokens = [tokenizer.token_bytes(index) for index in range(vocab_size)]
        self.tokens.append(b"")
        self.eos_token_id = vocab_size
        special = tokenizer.special_ids | frozenset(end_ids)
        self.special_token_ids = sorted(index for index in special if index < vocab_size)
        self._ordinary = set(range(vocab_size)) - special
        self._spelling = _spelling(tokenizer.backend)

    def __call__(self, text: str) -> list[int]:
        """Return the tokens a forced text is written in: the tokenizer's where their bytes are
        exactly the text's, else the longest that fit. Only the first is used, and asked for again
        behind it, so that a long text is not read to its end every time."""
        text = text[:FORCED_CHARACTERS]
        ids = self._spelling.encode(text, add_special_tokens=False).ids
        content = text.encode()
        if self._ordinary.issuperset(ids) and content == b"".join(self.tokens[i] for i in ids):
            return ids
        return self._longest(content)

    def _longest(self, content: bytes) -> list[int]:
        ids = []
        while content:
            most = min(len(content), self._longest_token)
            fits = (content[:size] for size in range(most, 0, -1) if content[:size] in self._ids)
            token = next(fits, None)
            if token is None:  # a byte that no token has
                break
            ids.append(self._ids[token])
            content = content[len(token) :]
        return ids

    @functools.cached_property
    def _ids(self) -> dict[bytes, int]:
        return {self.tokens[index]: index for index in sorted(self._ordinary, reverse=True)}

    @functools.cached_property
    def _longest_token(self) -> int:
        return max(map(len, self._ids), default=0)


def _spelling(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Copy a tokenizer for text in the middle of an answer, special tokens spelled out."""
    copy = tokenizers.Tokenizer.from_str(backend.to_str())
    copy.no_padding()
    copy.no_truncation()
    copy.encode_special_tokens = True
    if copy.normalizer is not None:
        state = json.loads(copy.normalizer.__getstate__())
        parts = [part for part in state.get("normalizers", [state]) if part["type"] != "Prepend"]
        normalizer = normalizers.Sequence([])
        normalizer.__setstate__(json.dumps({"type": "Sequence", "normalizers": parts}).encode())
        copy.normalizer = normalizer
    if isinstance(copy.pre_tokenizer, pre_tokenizers.Metaspace):
        copy.pre_tokenizer.prepend_scheme = "never"
    return copy
