"""The real model's tokenizer: characters split over tokens, stop strings anywhere in a text."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

import convert
from convert.pull import PullError, resolve
from paxkv.text.detokenizer import Detokenizer, decode_each, needs_context
from paxkv.text.stop import Finish, SequenceText, StopRules

TEXTS = [
    "\U0001f9d1\u200d\U0001f680 ok",
    " \u4eca\u5929\u7684\u5929\u6c14\u5f88\u597d",
    "P\u0159\u00edli\u0161 \u017elu\u0165ou\u010dk\u00fd k\u016f\u0148",
    "a\u0301b \U0001f1ef\U0001f1f5",
    "def f(x):\n\treturn  x  # caf\u00e9\r\n\n\n",
    " The capital of France is Paris, isn't it?  \u2026 12345",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    try:
        path = resolve("smollm2-135m", progress=False)
    except PullError as error:
        pytest.skip(str(error))
    return convert.open_checkpoint(path).tokenizer().backend


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_and_come_at_once(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    detokenizer = Detokenizer(tokenizer)
    sent = ""
    for end, token_id in enumerate(ids, start=1):
        piece = detokenizer.push(token_id)
        assert "\ufffd" not in piece
        sent += piece
        known = tokenizer.decode(ids[: end - 1])
        while known.endswith("\ufffd"):
            known = known[:-1]
        assert len(sent) >= len(known), "a finished character is more than one token late"
    assert sent + detokenizer.flush() == tokenizer.decode(ids) == text
    assert not needs_context(tokenizer)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_stop_strings_anywhere(tokenizer, text, include):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    for start in range(0, len(text), 2):
        for width in (1, 2, 5):
            stop = text[start : start + width]
            rules = StopRules.build(stop=[stop], include_stop_str_in_output=include)
            state = SequenceText(rules, Detokenizer(tokenizer))
            deltas = []
            for token_id in ids:
                decision = state.push(token_id)
                deltas.append(state.take_delta())
                if decision is not None:
                    break
            assert state.finish == Finish("stop", stop)
            assert state.text == text[: text.index(stop)] + (stop if include else "")
            assert "".join(deltas) == state.text


def test_display_texts_have_no_vocabulary_marks(tokenizer):
    context = tokenizer.encode("The").ids
    for text in decode_each(tokenizer, context, range(0, tokenizer.get_vocab_size(), 97)):
        assert not set(text) & set("ĠĊ▁")
    cat = tokenizer.encode(" cat").ids
    assert decode_each(tokenizer, context, cat) == [" cat"]
