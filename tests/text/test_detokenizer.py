"""DT-01, DT-03: characters split over tokens, leading spaces, no vocabulary marks."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import byte_fallback, byte_level, byte_token

from paxkv.text.detokenizer import Detokenizer, decode_each, needs_context

SPLIT_TEXTS = [
    "\U0001f9d1\u200d\U0001f680 ok",
    " \u4eca\u5929\u7684\u5929\u6c14\u5f88\u597d",
    "P\u0159\u00edli\u0161 \u017elu\u0165ou\u010dk\u00fd k\u016f\u0148",
    "a\u0301b \U0001f1ef\U0001f1f5",
]


def pieces(tokenizer, ids, **options):
    detokenizer = Detokenizer(tokenizer, **options)
    return [detokenizer.push(token_id) for token_id in ids] + [detokenizer.flush()]


@pytest.mark.parametrize("text", SPLIT_TEXTS)
def test_no_replacement_mark_appears_that_the_full_decode_lacks(text):
    tokenizer = byte_level()
    ids = tokenizer.encode(text).ids
    assert len(ids) > len(text.split())
    chunks = pieces(tokenizer, ids)
    assert "".join(chunks) == tokenizer.decode(ids) == text
    assert all("\ufffd" not in chunk for chunk in chunks)
    assert chunks[-1] == ""


def test_a_character_is_sent_with_its_last_byte():
    tokenizer = byte_level()
    ids = [tokenizer.encode(chr(0x1F680)).ids, tokenizer.encode("x").ids]
    chunks = pieces(tokenizer, ids[0] + ids[1])
    assert chunks[len(ids[0]) - 1] == chr(0x1F680)
    assert chunks[len(ids[0])] == "x"


def test_an_unfinished_character_comes_out_at_the_end():
    tokenizer = byte_level()
    whole = tokenizer.encode("ok " + chr(0x1F680)).ids
    for end in range(1, len(whole) + 1):
        assert "".join(pieces(tokenizer, whole[:end])) == tokenizer.decode(whole[:end])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, byte_level().get_vocab_size() - 1), max_size=40), st.booleans())
def test_any_ids_join_to_the_full_decode(ids, skip):
    tokenizer = byte_level()
    joined = "".join(pieces(tokenizer, ids, skip_special_tokens=skip))
    assert joined == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["▁the", "cat", "▁cat", ".", "\n", "é", "😀", "▁"]), max_size=20))
def test_byte_fallback_joins_to_the_full_decode(parts):
    tokenizer = byte_fallback()
    ids: list[int] = []
    for part in parts:
        known = tokenizer.token_to_id(part)
        ids += [known] if known is not None else [byte_token(byte) for byte in part.encode()]
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


def test_invalid_byte_runs_do_not_end_the_stream():
    tokenizer = byte_fallback()
    the, cat = tokenizer.token_to_id("▁the"), tokenizer.token_to_id("▁cat")
    ids = [the, byte_token(10), byte_token(0xF0), cat, byte_token(0xF0), byte_token(65), cat, the]
    text = "".join(pieces(tokenizer, ids))
    assert text.startswith("the\n")
    assert text.endswith(" cat the")
    assert text.count(" cat") == 2


def test_context_keeps_the_leading_space():
    tokenizer = byte_fallback()
    the, cat, dog = (tokenizer.token_to_id(word) for word in ("▁the", "▁cat", "▁dog"))
    assert needs_context(tokenizer)
    assert not needs_context(byte_level())
    assert "".join(pieces(tokenizer, [cat, dog])) == "cat dog"
    assert "".join(pieces(tokenizer, [cat, dog], context=[the])) == " cat dog"
    unfinished = [cat, byte_token(0xF0)]
    assert "".join(pieces(tokenizer, unfinished, context=[the])) == " cat\ufffd"


def test_special_tokens_are_skipped_or_shown():
    tokenizer = byte_level()
    ids = [1, *tokenizer.encode("ok").ids, 2]
    assert "".join(pieces(tokenizer, ids)) == "ok"
    assert "".join(pieces(tokenizer, ids, skip_special_tokens=False)) == "<|im_start|>ok<|im_end|>"


def test_long_runs_of_skipped_tokens_stay_cheap_and_change_nothing():
    tokenizer = byte_level()
    words = tokenizer.encode("the cat").ids
    rocket = tokenizer.encode(chr(0x1F680)).ids
    run = [2] * 20_000
    started = time.perf_counter()
    text = "".join(pieces(tokenizer, [*words, *run, rocket[0], *run[:40], *rocket[1:], *words]))
    assert text == "the cat" + chr(0x1F680) + "the cat"
    assert time.perf_counter() - started < 2.0
    pieced = byte_fallback()
    pieced.add_special_tokens(["<end>"])
    end, cat = pieced.token_to_id("<end>"), pieced.token_to_id("▁cat")
    ids = [cat, *[end] * 50, cat]
    assert "".join(pieces(pieced, ids)) == pieced.decode(ids) == "cat cat"
    assert "".join(pieces(pieced, ids, context=[cat])) == " cat cat"


def test_candidates_are_decoded_each_behind_the_same_context():
    tokenizer = byte_level()
    context = tokenizer.encode("the").ids
    candidates = [tokenizer.encode(text).ids[0] for text in (" cat", "the", "\n", "今")]
    candidates.append(2)
    assert decode_each(tokenizer, context, candidates)[:3] == [" cat", "the", "\n"]
    assert decode_each(tokenizer, context, candidates)[4] == "<|im_end|>"
    pieced = byte_fallback()
    the, cat = pieced.token_to_id("▁the"), pieced.token_to_id("▁cat")
    assert decode_each(pieced, [the], [cat, the, byte_token(10)]) == [" cat", " the", "\n"]
    for text in decode_each(pieced, [the, byte_token(0xF0)], [cat, byte_token(0x9F)]):
        assert "▁" not in text
        assert "Ġ" not in text
