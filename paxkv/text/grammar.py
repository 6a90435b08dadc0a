"""Grammars: which tokens keep an answer within the form that was asked for.

The work is llguidance's: it compiles a schema, an expression or a grammar together with the
vocabulary, and tells after every token which ones may follow, as bits.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Collection
from typing import Any

import llguidance
import numpy as np

from paxkv.sampling.structured_outputs import StructuredOutputsParams
from paxkv.text.tokenizer import Tokenizer

REMEMBERED = 64
_TOLD = re.compile(r"^Error: (.*)$", re.MULTILINE)  # the rest is a dump of everything


class Grammar:
    """Where one answer stands in its grammar."""

    def __init__(self, matcher: llguidance.LLMatcher, num_words: int) -> None:
        self._matcher = matcher
        self._num_words = num_words

    def copy(self) -> Grammar:
        """Another answer that stands here."""
        return Grammar(self._matcher.deep_copy(), self._num_words)

    def accept(self, token: int) -> None:
        """Go on by `token`, one of those `allowed` offered."""
        self._matcher.consume_token(token)

    @property
    def complete(self) -> bool:
        """Whether nothing but the end can follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def error(self) -> str:
        """Why nothing can follow, the end neither; empty if something can."""
        error = self._matcher.get_error()
        told = _TOLD.search(error)
        return told[1] if told else error

    def allowed(self) -> np.ndarray:
        """Bits uint32 [ceil(V / 32)] of the tokens that may follow, end ids where it may end."""
        words = np.zeros(self._num_words, np.uint32)
        if not self._matcher.is_error():
            self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        return words


class Grammars:
    """Compiles for one vocabulary, and remembers what was compiled last. Safe in threads.

    tokenizer: whose tokens are sampled. vocab_size: width of the logits. end_ids: tokens that may
    end an answer.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_ids = sorted(end_ids)
        self._lock = threading.Lock()
        self._compiled: OrderedDict[tuple[str, str], Grammar] = OrderedDict()

    def start(self, params: StructuredOutputsParams) -> Grammar:
        """The beginning of an answer. Raises ValueError if `params` cannot be compiled."""
        key = (params.kind, params.text())
        with self._lock:
            grammar = self._compiled.get(key)
        if grammar is None:  # nobody waits for it who asks for another
            grammar = self._compile(*key)
        with self._lock:
            self._compiled[key] = grammar
            self._compiled.move_to_end(key)
            if len(self._compiled) > REMEMBERED:
                self._compiled.popitem(last=False)
            return grammar.copy()

    def has(self, params: StructuredOutputsParams) -> bool:
        """Whether it is remembered."""
        return (params.kind, params.text()) in self._compiled

    def check(self, kind: str, text: str) -> None:
        """Raises ValueError if it cannot be compiled; nothing of it is remembered."""
        self._compile(kind, text)

    def vocabulary(self) -> dict[str, Any]:
        """What another process needs to know, as JSON."""
        return {
            "tokenizer": self._tokenizer.backend.to_str(),
            "vocab_size": self._vocab_size,
            "end_ids": self._end_ids,
        }

    def _compile(self, kind: str, text: str) -> Grammar:
        source = _source(kind, text)
        failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(
            source, self._vocabulary
        )
        if failed:
            raise _not_compiled(kind, messages[0])
        matcher = llguidance.LLMatcher(self._vocabulary, source, log_level=0)
        if matcher.is_error():
            raise _not_compiled(kind, matcher.get_error())
        grammar = Grammar(matcher, -(-self._vocab_size // 32))
        grammar.allowed()  # some are found out no earlier
        if grammar.error:
            raise _not_compiled(kind, grammar.error)
        return grammar

    @functools.cached_property
    def _vocabulary(self) -> llguidance.LLTokenizer:
        return llguidance.LLTokenizer(
            self._tokenizer.backend.to_str(), n_vocab=self._vocab_size, eos_token=self._end_ids
        )


def _source(kind: str, text: str) -> str:
    if kind == "json_object":
        kind, text = "json", json.dumps({"type": "object"})
    elif kind == "choice":  # as one terminal: thousands of rules would be too many
        choices = " | ".join(json.dumps(choice) for choice in json.loads(text))
        return llguidance.LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {choices}")
    try:
        return llguidance.grammar_from(kind, text)  # type: ignore[arg-type]
    except ValueError as error:
        raise _not_compiled(kind, str(error)) from None


def _not_compiled(kind: str, message: str) -> ValueError:
    return ValueError(
        f"structured_outputs.{kind} cannot be compiled: {' '.join(message.split())[:300]}"
    )
