"""Grammars over the real vocabulary: what they allow, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convert import open_checkpoint
from convert.pull import PullError
from paxkv.sampling.allowed_tokens import token_bits
from paxkv.sampling.sampling_params import SamplingParams
from paxkv.sampling.structured_outputs import StructuredOutputsParams
from paxkv.text.grammar import Grammar, Grammars

END = 2
ENDS = token_bits([END], 49152)


@pytest.fixture(scope="module")
def checkpoint() -> Any:
    try:
        return open_checkpoint("smollm2-135m")
    except PullError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def grammars(checkpoint: Any) -> Grammars:
    return Grammars(checkpoint.tokenizer(), checkpoint.config.vocab_size, {END})


def start(grammars: Grammars, **fields: Any) -> Grammar:
    return grammars.start(StructuredOutputsParams(**fields))


def offered(grammar: Grammar) -> set[int]:
    bits = np.unpackbits(grammar.allowed(ENDS).view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def walk(checkpoint: Any, grammar: Grammar, text: str) -> bool:
    """Follow the tokens of `text` as long as each is offered; whether all were."""
    for token in checkpoint.tokenizer().encode(text, add_special_tokens=False):
        if token not in offered(grammar):
            return False
        grammar.accept(token)
    return True


def test_a_choice_offers_the_beginnings_of_each(grammars: Grammars, checkpoint: Any) -> None:
    tokenizer = checkpoint.tokenizer()
    texts = {tokenizer.decode([i]) for i in offered(start(grammars, choice=["yes", "no"]))}
    assert texts == {"n", "y", "no", "ye", "yes"}


@pytest.mark.parametrize(
    ("fields", "good", "bad"),
    [
        ({"choice": ['say "a|b"', "no"]}, 'say "a|b"', "say a"),
        ({"regex": r"[0-9]{3}-[a-z]+"}, "123-abc", "12-abc"),
        ({"json_object": True}, '{"a": [1, null]}', "[1]"),
        ({"grammar": 'root ::= "a" root "b" | ""'}, "aaabbb", "aab aab"),
        ({"grammar": 'start: "x" | "y" start'}, "yyx", "xy"),
        (
            {"json": {"type": "object", "properties": {"n": {"type": "integer"}}}},
            '{"n": 12}',
            '{"n": "twelve"}',
        ),
    ],
    ids=str,
)
def test_it_follows_what_fits_and_nothing_else(
    fields: dict[str, Any], good: str, bad: str, grammars: Grammars, checkpoint: Any
) -> None:
    grammar = start(grammars, **fields)
    assert walk(checkpoint, grammar, good)
    assert END in offered(grammar)
    assert not grammar.error
    assert not walk(checkpoint, start(grammars, **fields), bad)


def test_it_may_end_where_it_is_whole_and_is_complete_where_nothing_follows(
    grammars: Grammars, checkpoint: Any
) -> None:
    grammar = start(grammars, regex="ab?")
    assert END not in offered(grammar)
    assert walk(checkpoint, grammar, "a")
    assert END in offered(grammar)
    assert not grammar.complete
    before = grammar.copy()
    assert walk(checkpoint, grammar, "b")
    assert grammar.complete
    assert not before.complete


def test_no_answer_moves_another(grammars: Grammars, checkpoint: Any) -> None:
    first = start(grammars, choice=["one", "two"])
    want = offered(first)
    assert walk(checkpoint, first, "one")
    assert offered(start(grammars, choice=["one", "two"])) == want


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": "a("}, "regex cannot be compiled: .*unclosed group"),
        ({"json": {"type": "foo"}}, "json cannot be compiled: .*foo"),
        ({"grammar": "start: b"}, "grammar cannot be compiled"),
        ({"grammar": "root ::= root"}, "grammar cannot be compiled: no text completes it"),
        ({"json": {"$ref": "#"}}, "json cannot be compiled: no text completes it"),
    ],
    ids=str,
)
def test_what_cannot_be_compiled_is_refused_by_name(
    fields: dict[str, Any], message: str, grammars: Grammars
) -> None:
    with pytest.raises(ValueError, match=rf"structured_outputs\.{message}"):
        start(grammars, **fields)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "exactly one of json, regex, choice, grammar, json_object; got none"),
        ({"regex": "a", "choice": ["b"]}, "got regex, choice"),
        ({"regex": 7}, r"structured_outputs\.regex must be a non-empty string, got 7"),
        ({"choice": []}, r"structured_outputs\.choice must be a list of at least one"),
        ({"choice": ["a", ""]}, r"structured_outputs\.choice must be a non-empty string"),
        ({"json": "{"}, r"structured_outputs\.json must be a JSON schema"),
        ({"json": "[]"}, r"structured_outputs\.json must be a JSON schema: an object"),
        ({"json": {"a": {1, 2}}}, r"structured_outputs\.json must be .* plain JSON values"),
        ({"json_object": False}, r"structured_outputs\.json_object must be True"),
        ({"grammar": "x" * 100_001}, r"at most 100000 characters long"),
        ({"xml": "a"}, "structured_outputs must be one of json.*, got 'xml'"),
        ("json", "structured_outputs must be a mapping"),
    ],
    ids=str,
)
def test_a_wrong_form_is_refused_when_it_is_written(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(structured_outputs=value)


def test_a_beam_search_takes_no_form() -> None:
    with pytest.raises(ValueError, match="structured_outputs must be None when use_beam_search"):
        SamplingParams(use_beam_search=True, temperature=0, structured_outputs={"regex": "a"})
