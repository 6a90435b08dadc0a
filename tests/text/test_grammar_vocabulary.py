"""Literals that look like special tokens are spelled out, and nothing ends a form before it is
whole: the kind of fault is a vocabulary that knows tokens only by their text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as Backend

from paxkv.text.grammar_vocabulary import FORCED_CHARACTERS, GrammarVocabulary
from paxkv.text.tokenizer import Tokenizer
from tests.text.form_walk import FormWalk
from tests.text.small_tokenizers import SPECIALS, byte_fallback, byte_level

END = 2
QUOTED = json.dumps(SPECIALS[END])


@pytest.fixture(scope="module")
def walk() -> FormWalk:
    return FormWalk(Tokenizer(byte_level()), {END}, 300)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"json": {"const": SPECIALS[END]}}, QUOTED),
        ({"json": {"enum": ["the", *SPECIALS]}}, json.dumps(SPECIALS[0])),
        ({"json": {"type": "string", "pattern": r"^<\|im_end\|>$"}}, QUOTED),
        (
            {"json": {"type": "object", "properties": {SPECIALS[END]: {"const": 1}},
                      "required": [SPECIALS[END]], "additionalProperties": False}},
            f"{{{QUOTED}:1}}",
        ),
        ({"regex": r"<\|im_end\|>"}, SPECIALS[END]),
        ({"grammar": f"root ::= {QUOTED} root | \"\""}, SPECIALS[END] * 2),
        ({"grammar": f"start: {QUOTED}"}, SPECIALS[END]),
        ({"choice": SPECIALS}, SPECIALS[0]),
        ({"choice": [SPECIALS[END]]}, SPECIALS[END]),
        ({"choice": [SPECIALS[END] + " the cat", SPECIALS[END]]}, SPECIALS[END]),
    ],
    ids=str,
)  # fmt: skip
def test_a_special_token_is_never_its_text(
    walk: FormWalk, fields: dict[str, Any], text: str
) -> None:
    ids = walk.tokens(text, **fields)
    assert ids is not None
    assert walk.tokenizer.special_ids.isdisjoint(ids)
    assert walk.tokenizer.decode(ids) == text


def test_a_choice_that_goes_on_may_end_where_the_short_one_does(walk: FormWalk) -> None:
    grammar = walk.start(choice=["no", "no, the cat"])
    for token in walk.tokenizer.encode("no"):
        assert END not in walk.offered(grammar)
        grammar.accept(token)
    assert END in walk.offered(grammar)
    assert not grammar.complete


@pytest.mark.parametrize(
    "name", ["not special", "a word of the vocabulary", "a stop token", "none at all"]
)
def test_whatever_ends_an_answer_is_no_text(name: str) -> None:
    """The end is what the configuration says, not what the tokenizer calls special."""
    backend = byte_level()
    (word,) = backend.encode(" the").ids
    end_ids = {"not special": {300}, "a word of the vocabulary": {word}, "none at all": set()}
    if name == "not special":
        backend = Backend.from_str(backend.to_str())
        backend.add_tokens([AddedToken("</s>", special=False)])
    walk = FormWalk(Tokenizer(backend), end_ids.get(name, {word}))
    for text in (" the cat", "</s> the"):
        ids = walk.tokens(text, choice=[text])
        assert ids is not None
        assert walk.end_ids.isdisjoint(ids)


def test_a_request_s_own_end_is_offered_where_the_form_is_whole(walk: FormWalk) -> None:
    """Stop token ids are no end of the vocabulary's, and may be words."""
    (quote,) = walk.tokenizer.encode('"')
    request = FormWalk(walk.tokenizer, {END, quote}, 300)
    request.grammars = walk.grammars
    grammar = request.start(regex='[a"]+')
    assert quote not in request.offered(grammar)
    (letter,) = walk.tokenizer.encode("a")
    grammar.accept(letter)
    assert {END, quote} <= request.offered(grammar)


@pytest.mark.parametrize("size", [299, 300, 319, 320, 321, 352])
def test_any_width_of_the_logits(size: int) -> None:
    """The end has a bit of its own behind the last token's, also at a word's border."""
    walk = FormWalk(Tokenizer(byte_level()), {END}, size)
    assert walk.takes("aa", regex="a+")
    assert max(walk.offered(walk.start(regex="[^x]+"))) < 300


def test_forced_text_is_written_as_the_tokenizer_writes_it(walk: FormWalk) -> None:
    text = "the cat sat on the mat. " * 100
    assert len(text) > 2 * FORCED_CHARACTERS
    assert walk.tokens(text, choice=[text]) == walk.tokenizer.encode(text)


def test_a_tokenizer_that_begins_texts_with_a_space() -> None:
    """In the middle of an answer no text begins; there, and for characters that only bytes write,
    the forced text is exact."""
    backend = Backend.from_str(byte_fallback().to_str())
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer = Tokenizer(backend)
    vocabulary = GrammarVocabulary(tokenizer, tokenizer.vocab_size, {1})
    for text in ("a cat", " the dog", "žába"):
        ids = vocabulary(text)
        assert b"".join(tokenizer.token_bytes(token) for token in ids) == text.encode()
    walk = FormWalk(tokenizer, {0})
    assert walk.takes("cat žába", choice=["cat žába"])
