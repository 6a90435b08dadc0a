"""Keys are jax.random's own, and stay what they are."""

from __future__ import annotations

import jax
import numpy as np

from paxkv.sampling.prng import row_keys, split_seed, uniforms


def test_split_seed():
    assert split_seed(1).tolist() == [0, 1]
    assert split_seed(2**32 + 5).tolist() == [1, 5]
    assert split_seed(2**64 - 1).tolist() == split_seed(-1).tolist() == [2**32 - 1] * 2
    assert split_seed(1).dtype == np.uint32


def test_keys_fold_child_then_position():
    base = np.stack([split_seed(42), split_seed(43)])
    keys = row_keys(base, np.array([0, 3], np.int32), np.array([10, 11], np.int32))
    for row, (child, position) in enumerate([(0, 10), (3, 11)]):
        key = jax.random.wrap_key_data(base[row], impl="threefry2x32")
        key = jax.random.fold_in(jax.random.fold_in(key, child), position)
        assert (jax.random.key_data(key) == jax.random.key_data(keys[row])).all()


def test_uniforms_are_reproducible_over_versions():
    keys = row_keys(split_seed(42)[None], np.zeros(1, np.int32), np.full(1, 5, np.int32))
    sampled = np.asarray(uniforms(keys, 0))
    assert sampled.dtype == np.float32
    assert np.round(sampled * 2**24).astype(int).tolist() == PINNED
    assert (np.asarray(uniforms(keys, 1)) != sampled).all()


PINNED = [[10705737, 3407357]]
