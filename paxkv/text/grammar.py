"""Grammars: which tokens keep an answer within its structured output.

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
from llguidance.gbnf_to_lark import gbnf_to_lark

from paxkv.sampling.allowed_tokens import token_bits
from paxkv.sampling.structured_outputs import FormError, FormSource, StructuredOutputsParams
from paxkv.text import json_schema
from paxkv.text.grammar_vocabulary import GrammarVocabulary
from paxkv.text.tokenizer import Tokenizer

REMEMBERED = 64
_TOLD = re.compile(r"^Error: (.*)$", re.MULTILINE)  # the rest is a dump of everything
DEAD_END = "no text completes it"  # what llguidance has no words for
_GBNF_RULE = re.compile(r"^[ \t]*([\w-]+)[ \t]*::=", re.MULTILINE)  # no rule of Lark's begins so
_GBNF_WORD = re.compile(
    r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|\{[^}]*\}|[\w-]+', re.DOTALL
)  # literals, character classes, comments and repetitions whole, so that no name is found in them
BETWEEN_TOKENS = r"[ \n]"  # at most once, so that no answer ends in endless white space


class Grammar:
    """State of one answer in its grammar."""

    def __init__(self, matcher: llguidance.LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def copy(self) -> Grammar:
        """Return an independent copy in the same state."""
        return Grammar(self._matcher.deep_copy(), self._vocab_size)

    def accept(self, token: int) -> None:
        """Advance by `token`, one of those that `allowed` offered."""
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
        reason = told[1] if told else error
        return DEAD_END if reason == "None" else reason

    def allowed(self, ends: np.ndarray) -> np.ndarray:
        """Bits uint32 [ceil(V / 32)] of the tokens that may follow.

        ends: bits of those that end the answer: offered where it may end, and nowhere else.
        """
        words = np.zeros(self._vocab_size // 32 + 1, np.uint32)
        if not self._matcher.is_error():
            self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        end = np.uint32(1 << self._vocab_size % 32)  # the vocabulary's own, behind all tokens
        may_end = words[-1] & end
        words[-1] &= ~end
        words = words[: ends.size]
        return (words & ~ends) | ends if may_end else words & ~ends


class Grammars:
    """Compiles grammars for one vocabulary, with a cache of recent ones. Thread-safe.

    tokenizer: whose tokens are sampled. vocab_size: width of the logits. end_ids: tokens that may
    end an answer.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_ids = sorted(end_ids)
        self._lock = threading.Lock()
        self._compiled: OrderedDict[FormSource, Grammar] = OrderedDict()

    def start(self, params: StructuredOutputsParams) -> Grammar:
        """State at the beginning of an answer. Raises FormError if `params` cannot be compiled."""
        key = params.source()
        with self._lock:
            grammar = self._compiled.get(key)
        if grammar is None:  # compiled outside the lock, so that others need not wait
            grammar = self._compile(key)
        with self._lock:
            self._compiled[key] = grammar
            self._compiled.move_to_end(key)
            if len(self._compiled) > REMEMBERED:
                self._compiled.popitem(last=False)
            return grammar.copy()

    def has(self, params: StructuredOutputsParams) -> bool:
        """Whether the compiled grammar is in the cache."""
        return params.source() in self._compiled

    def check(self, form: FormSource) -> None:
        """Raise FormError if `form` cannot be compiled; nothing is cached."""
        self._compile(form)

    def vocabulary(self) -> dict[str, Any]:
        """The vocabulary as JSON, for another process."""
        return {
            "tokenizer": self._tokenizer.backend.to_str(),
            "vocab_size": self._vocab_size,
            "end_ids": self._end_ids,
        }

    def _compile(self, form: FormSource) -> Grammar:
        kind = form.kind
        source = _grammar(form)
        failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(
            source, self._vocabulary
        )
        if failed:
            raise _not_compiled(kind, messages[0])
        matcher = llguidance.LLMatcher(self._vocabulary, source, log_level=0)
        if matcher.is_error():
            raise _not_compiled(kind, matcher.get_error())
        grammar = Grammar(matcher, self._vocab_size)
        first = grammar.allowed(token_bits((), self._vocab_size))
        if grammar.error:  # some are found out no earlier
            raise _not_compiled(kind, grammar.error)
        if not first.any():
            raise _not_compiled(kind, "no text but the empty one fits it")
        return grammar

    @functools.cached_property
    def _vocabulary(self) -> llguidance.LLTokenizer:
        tokens = GrammarVocabulary(self._tokenizer, self._vocab_size, self._end_ids)
        return llguidance.LLTokenizer(tokens)  # type: ignore[arg-type]


def _grammar(form: FormSource) -> str:
    """The form as llguidance's own description of a grammar."""
    if form.kind == "regex":
        return llguidance.LLMatcher.grammar_from_regex(form.text)
    if form.kind == "choice":  # as one terminal: thousands of rules would be too many
        choices = " | ".join(json.dumps(choice) for choice in json.loads(form.text))
        return llguidance.LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {choices}")
    if form.kind == "grammar":
        return llguidance.LLMatcher.grammar_from_lark(_lark(form.text))
    schema = {"type": "object"} if form.kind == "json_object" else json.loads(form.text)
    json_schema.prepare(schema, close=form.closed)
    return llguidance.LLMatcher.grammar_from_json_schema(
        schema,
        defaults={"whitespace_pattern": BETWEEN_TOKENS},
        overrides={"whitespace_pattern": None, "whitespace_flexible": False}
        if form.compact
        else None,
    )


def _lark(grammar: str) -> str:
    if not _GBNF_RULE.search(grammar):
        return grammar
    try:
        return gbnf_to_lark(_with_lark_names(grammar))
    except Exception as error:  # some of it only this
        raise _not_compiled("grammar", str(error)) from None


def _with_lark_names(grammar: str) -> str:
    """Rename GBNF's rules as Lark can have them, each to a name of its own: Lark's are of one
    case, without dashes, and begin with a letter; `start` is what `root` becomes."""
    names: dict[str, str] = {}
    taken = {"start"}
    for rule in _GBNF_RULE.finditer(grammar):
        if rule[1] == "root" or rule[1] in names:
            continue
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", rule[1]).replace("-", "_").lower()
        name = name if name[0].isalpha() else f"r{name}"
        while name in taken:
            name += "_"
        taken.add(name)
        names[rule[1]] = name
    return _GBNF_WORD.sub(lambda word: names.get(word[0], word[0]), grammar)


def _not_compiled(kind: str, message: str) -> FormError:
    return FormError(kind, f"cannot be compiled: {' '.join(message.split())[:300]}")
