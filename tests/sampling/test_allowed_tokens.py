"""min_tokens, bad_words and allowed_token_ids as bits."""

from __future__ import annotations

import numpy as np
import pytest

from paxkv.sampling.allowed_tokens import AllowedTokens, NoTokenAllowed, bad_word_sequences
from paxkv.sampling.sampling_params import SamplingParams

WIDTH = 70


def allowed_ids(words):
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")[:WIDTH]).tolist()


def everything_but(*banned):
    return [token for token in range(WIDTH) if token not in banned]


def test_nothing_to_ban():
    rules = AllowedTokens(SamplingParams(), WIDTH, end_ids=[2])
    assert not rules.needed
    assert rules.row([]) is None


def test_end_ids_are_banned_before_min_tokens():
    rules = AllowedTokens(SamplingParams(min_tokens=2), WIDTH, end_ids=[0, 69, 5000])
    assert rules.needed
    assert allowed_ids(rules.row([])) == everything_but(0, 69)
    assert allowed_ids(rules.row([5])) == everything_but(0, 69)
    assert rules.row([5, 6]) is None


def test_allowed_token_ids():
    rules = AllowedTokens(SamplingParams(allowed_token_ids=[0, 31, 32, 69]), WIDTH)
    assert allowed_ids(rules.row([1, 2])) == [0, 31, 32, 69]


def test_bad_words_ban_their_last_token_behind_the_others():
    rules = AllowedTokens(SamplingParams(), WIDTH, bad_sequences=[(7,), (3, 4, 33), (4, 64)])
    assert rules.needed
    assert allowed_ids(rules.row([])) == everything_but(7)
    assert allowed_ids(rules.row([3, 4])) == everything_but(7, 33, 64)
    assert allowed_ids(rules.row([1, 4])) == everything_but(7, 64)
    assert allowed_ids(rules.row([3, 4, 5])) == everything_but(7)
    only_long = AllowedTokens(SamplingParams(), WIDTH, bad_sequences=[(3, 4)])
    assert only_long.needed
    assert only_long.row([1]) is None
    assert allowed_ids(only_long.row([3])) == everything_but(4)


def test_an_empty_choice_is_refused():
    with pytest.raises(NoTokenAllowed):
        AllowedTokens(SamplingParams(allowed_token_ids=[2], min_tokens=1), WIDTH, end_ids=[2])
    with pytest.raises(NoTokenAllowed):
        AllowedTokens(SamplingParams(allowed_token_ids=[2]), WIDTH, bad_sequences=[(2,)])
    params = SamplingParams(allowed_token_ids=[2])
    rules = AllowedTokens(params, WIDTH, bad_sequences=[(2, 2)])
    assert allowed_ids(rules.row([])) == [2]
    with pytest.raises(NoTokenAllowed):
        rules.row([2])


def test_bad_words_with_and_without_a_space():
    known = {"the": [5], " the": [6], "new york": [1, 2], " new york": [3, 2]}
    assert bad_word_sequences(["the"], known.__getitem__) == [(5,), (6,)]
    assert bad_word_sequences([" the"], known.__getitem__) == [(6,)]
    assert bad_word_sequences(["new york"], known.__getitem__) == [(1, 2), (3, 2)]
