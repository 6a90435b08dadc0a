"""Which answers a form lets through, token by token, as a model would write them."""

from __future__ import annotations

from typing import Any

import numpy as np

from paxkv.sampling.allowed_tokens import token_bits
from paxkv.sampling.structured_outputs import StructuredOutputsParams
from paxkv.text.grammar import Grammar, Grammars
from paxkv.text.tokenizer import Tokenizer


class FormWalk:
    """Walks through the forms of one vocabulary.

    end_ids: what ends an answer. vocab_size: by default the tokenizer's.
    """

    def __init__(
        self, tokenizer: Tokenizer, end_ids: set[int], vocab_size: int | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size or tokenizer.vocab_size
        self.end_ids = end_ids
        self.grammars = Grammars(tokenizer, self.vocab_size, end_ids)

    def start(self, **fields: Any) -> Grammar:
        return self.grammars.start(StructuredOutputsParams(**fields))

    def offered(self, grammar: Grammar) -> set[int]:
        words = grammar.allowed(token_bits(self.end_ids, self.vocab_size))
        assert words.shape == (-(-self.vocab_size // 32),)
        return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())

    def tokens(self, text: str, **fields: Any) -> list[int] | None:
        """The tokens of an answer with this text, the longest first; None if the form does not
        let it through."""
        grammar, rest, ids = self.start(**fields), text.encode(), []
        while rest and not grammar.complete:
            offered = self.offered(grammar)
            fitting = {token: self.tokenizer.token_bytes(token) for token in offered - self.end_ids}
            fitting = {token: content for token, content in fitting.items()
                       if content and rest.startswith(content)}  # fmt: skip
            if not fitting:
                return None
            token = max(fitting, key=lambda token: len(fitting[token]))
            ids.append(token)
            grammar.accept(token)
            rest = rest[len(fitting[token]) :]
        whole = grammar.complete or self.end_ids <= self.offered(grammar)
        return ids if whole and not rest else None

    def takes(self, text: str, **fields: Any) -> bool:
        return self.tokens(text, **fields) is not None
