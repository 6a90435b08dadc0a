"""Selection without sorting against numpy's sort."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from paxkv.sampling.top_k import kth_threshold, largest

threshold_of = jax.jit(kth_threshold)
first = jax.jit(largest, static_argnums=1)


def assert_thresholds(rows, k):
    thresholds = np.asarray(threshold_of(rows, np.asarray(k, np.int32)))
    for row, threshold, wanted in zip(rows, thresholds, k):
        if not wanted:
            assert threshold == -np.inf
            continue
        expected = row >= np.sort(row)[-wanted]
        assert ((row >= threshold) == expected).all()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["continuous", "ties", "constant", "banned", "tiny", "negative"]),
    st.lists(st.sampled_from([0, 1, 2, 63, 64, 65, 200, 1000, 16384]), min_size=4, max_size=4),
)
def test_threshold_keeps_the_k_largest_and_ties(seed, kind, k):
    random = np.random.default_rng(seed)
    rows = random.normal(size=(4, 16384)).astype(np.float32) * 10
    if kind == "ties":
        rows = np.round(rows / 8).astype(np.float32)
    elif kind == "constant":
        rows[:] = -3.5
    elif kind == "banned":
        rows[random.random(rows.shape) < 0.999] = -np.inf
    elif kind == "tiny":
        rows *= np.float32(1e-30)
    elif kind == "negative":
        rows = -np.abs(rows)
    assert_thresholds(rows, k)


@pytest.mark.parametrize("k", [1, 20, 64])
@pytest.mark.parametrize("width", [300, 16384, 20000])
@pytest.mark.parametrize("levels", [3, 40, 10**6])
def test_largest_is_top_k(k, width, levels):
    random = np.random.default_rng(k + width + levels)
    rows = random.integers(-levels, levels, (6, width)).astype(np.float32)
    values, columns = first(rows, k)
    wanted_values, wanted_columns = lax.top_k(rows, k)
    assert (values == wanted_values).all()
    assert (columns == wanted_columns).all()


def test_among_equal_values_the_lower_column_comes_first_over_all_blocks():
    rows = np.full((1, 16384), -1.0, np.float32)
    rows[0, [9000, 9005, 40, 5000]] = [10.0, 3.0, 3.0, 3.0]
    values, columns = first(rows, 3)
    assert np.asarray(values).tolist() == [[10.0, 3.0, 3.0]]
    assert np.asarray(columns).tolist() == [[9000, 40, 5000]]
