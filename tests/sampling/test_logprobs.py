"""SA-08: log-probabilities of the raw distribution, with true ranks."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from float64_reference import softmax

from paxkv.outputs import Logprob, token_logprobs
from paxkv.sampling.logprobs import top_logprobs

score = jax.jit(top_logprobs, static_argnums=2)


@pytest.mark.parametrize("width", [300, 49152])
def test_against_float64(width):
    random = np.random.default_rng(width)
    logits = (random.normal(size=(4, width)) * 4 + 50).astype(np.float32)
    tokens = np.array([0, width - 1, int(logits[2].argmax()), 130], np.int32)
    result = score(logits, tokens, 20)
    for row, token in enumerate(tokens):
        expected = np.log(softmax(logits[row].astype(np.float64)))
        order = np.argsort(-logits[row], kind="stable")
        assert abs(result.chosen[row] - expected[token]) < 1e-4
        assert result.rank[row] == list(order).index(token) + 1
        assert np.asarray(result.ids[row]).tolist() == order[:20].tolist()
        assert np.abs(np.asarray(result.values[row]) - expected[order[:20]]).max() < 1e-4


def test_equal_entries_rank_by_column():
    logits = np.zeros((3, 200), np.float32)
    result = score(logits, np.array([0, 5, 199], np.int32), 3)
    assert np.asarray(result.rank).tolist() == [1, 6, 200]
    assert np.asarray(result.ids[0]).tolist() == [0, 1, 2]


def test_unwanted_logprobs_are_zeros():
    result = score(np.ones((2, 200), np.float32), np.zeros(2, np.int32), 3, False)
    assert all(not np.asarray(part).any() for part in result)
    assert result.ids.shape == (2, 3)


def test_the_token_comes_first_and_nothing_twice():
    entries = token_logprobs(7, -5.0, 40, [3, 4], [-0.5, -1.0], lambda ids: [str(i) for i in ids])
    assert list(entries) == [7, 3, 4]
    assert entries[7] == Logprob(-5.0, 40, "7")
    assert entries[4] == Logprob(-1.0, 2, "4")
    inside = token_logprobs(4, -1.0, 2, [3, 4], [-0.5, -1.0])
    assert list(inside) == [4, 3]
    assert [entry.rank for entry in inside.values()] == [2, 1]
    assert list(token_logprobs(4, -1.0, 1, [4, 5], [-0.0, -np.inf])) == [4]
