"""The battery of the attention contract; every back end must pass it."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import copy_pages, merge_states, ragged_paged_attention, write_kv, xla
from pallas_kernels.xla import Config
from tests.kernels.float64_attention import Case

BACK_ENDS = ["xla"]
# Compiled as one program: op by op, as many compilations as operations.
attend = jax.jit(
    ragged_paged_attention,
    static_argnames=("scale", "window", "softcap", "return_lse", "config", "backend"),
)

DECODE = [(1, 1), (1, 5), (1, 16), (1, 33)]
MIXED = [(1, 9), (7, 7), (3, 20), (0, 0), (1, 1), (18, 40)]
SINKS = np.array([0.5, -1.0, 2.0, 0.0], np.float32)


def scales(seed):
    return jnp.asarray(np.random.default_rng(seed).uniform(0.5, 2, size=(19, 4, 2)), jnp.float32)


CASES = {
    "decode": Case(DECODE),
    "mixed": Case(MIXED),
    "padding tokens": Case(MIXED, padding=5),
    "padding rows": Case([(1, 3), (0, 0), (0, 0)], padding=2),
    "page of one token": Case(MIXED, page_size=1),
    "large pages": Case(MIXED, page_size=32),
    "one kv head": Case(MIXED, kv_heads=1),
    "as many kv heads": Case(MIXED, kv_heads=4),
    "window": Case(MIXED, options={"window": 5}),
    "window of one": Case(MIXED, options={"window": 1}),
    "window wider than all": Case(DECODE, options={"window": 100}),
    "softcap": Case(MIXED, options={"softcap": 1.5}),
    "scale": Case(MIXED, options={"scale": 0.7}),
    "sinks": Case(MIXED, options={"sinks": SINKS}),
    "quantised pages": Case(DECODE, options={"k_scale": scales(1), "v_scale": scales(2)}),
    "long": Case([(1, 700), (40, 300), (1, 129)], page_size=16),
}


@pytest.mark.parametrize("backend", BACK_ENDS)
@pytest.mark.parametrize("name", CASES)
def test_against_float64(name, backend):
    case = CASES[name]
    want, want_lse = case.expected()
    got, lse = attend(*case.arguments(), return_lse=True, backend=backend, **case.options)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=2e-6)


def test_asking_for_the_log_sum_exp_changes_nothing():
    arguments = CASES["mixed"].arguments()
    with_lse, _ = attend(*arguments, return_lse=True)
    np.testing.assert_array_equal(attend(*arguments), with_lse)


@pytest.mark.parametrize("name", ["mixed", "window", "long"])
@pytest.mark.parametrize("tuning", [(1, 4, 1), (16, 128, 8), (5, 24, 3)])
def test_tuning_does_not_change_the_answer(name, tuning):
    case = CASES[name]
    got = attend(*case.arguments(), config=Config(*tuning), **case.options)
    np.testing.assert_allclose(got, case.expected()[0], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_keys_by_dim_are_the_same_keys(name):
    case = CASES[name]
    q, k, *rest = case.arguments()
    options = {"scale": q.shape[-1] ** -0.5, "return_lse": True, **case.options}
    want, want_lse = case.expected()
    turned = jax.jit(partial(xla.ragged_paged_attention, **options, keys_by_dim=True))
    got, lse = turned(q, np.swapaxes(k, 2, 3), *rest)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-5, atol=2e-6)


def test_one_program_serves_every_batch():
    attend = jax.jit(lambda *arguments: ragged_paged_attention(*arguments))
    for seed, lengths in enumerate([[(1, 7), (3, 9)], [(4, 9), (0, 0)], [(2, 2), (2, 8)]]):
        case = Case(lengths, padding=4 - sum(count for count, _ in lengths), seed=seed)
        tables = np.zeros((2, 8), np.int32)
        tables[:, : case.tables.shape[1]] = case.tables
        pages = [np.zeros((10, 2, 4, 8), np.float32) for _ in range(2)]
        pages[0][: len(case.k_pages)] = case.k_pages
        pages[1][: len(case.v_pages)] = case.v_pages
        got = attend(case.q, *pages, tables, case.kv_lens, case.query_start)
        np.testing.assert_allclose(got, case.expected()[0], rtol=1e-5, atol=2e-6)
    assert attend._cache_size() == 1


def test_bfloat16_keeps_its_dtype():
    case = CASES["mixed"]
    q, k, v, *rest = case.arguments()
    narrow = [jnp.asarray(x, jnp.bfloat16) for x in (q, k, v)]
    got = attend(*narrow, *rest)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(got, np.float32), case.expected()[0], atol=0.05)


def test_merging_parts_is_attention_over_the_whole():
    random = np.random.default_rng(0)
    scores = random.normal(size=(6, 5, 4)) * 3
    values = random.normal(size=(6, 4, 8))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    whole = np.einsum("hqk,hkd->hqd", weights / weights.sum(-1, keepdims=True), values)
    outs, lses = [], []
    for part in (slice(0, 1), slice(1, 4)):
        piece = np.exp(scores[..., part])
        shares = piece / piece.sum(-1, keepdims=True)
        outs.append(np.einsum("hqk,hkd->hqd", shares, values[:, part]))
        lses.append(np.log(piece.sum(-1)))
    # A part that saw nothing, and whose output is rubbish.
    outs.append(np.full_like(outs[0], np.nan))
    lses.append(np.full_like(lses[0], -np.inf))
    out, lse = merge_states(jnp.asarray(outs, jnp.float32), jnp.asarray(lses, jnp.float32))
    np.testing.assert_allclose(out, whole, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(lse, np.log(np.exp(scores).sum(-1)), rtol=1e-5)


def test_merging_nothing_is_zero():
    out, lse = merge_states(jnp.full((2, 3, 4), jnp.nan), jnp.full((2, 3), -jnp.inf))
    np.testing.assert_array_equal(out, np.zeros((3, 4)))
    np.testing.assert_array_equal(lse, np.full(3, -np.inf))


def test_writing_touches_its_slots_only():
    random = np.random.default_rng(0)
    pages = random.normal(size=(2, 6, 2, 4, 8)).astype(np.float32)
    k, v = random.normal(size=(2, 5, 2, 8)).astype(np.float32)
    slots = np.array([21, 4, 7, 0, 0], np.int32)
    got = write_kv(*(jnp.asarray(x) for x in pages), k, v, slots)
    turned = xla.write_kv(
        jnp.asarray(np.swapaxes(pages[0], 2, 3)),
        jnp.asarray(pages[1]),
        k,
        v,
        slots,
        keys_by_dim=True,
    )
    np.testing.assert_array_equal(np.swapaxes(turned[0], 2, 3)[1:], got[0][1:])
    np.testing.assert_array_equal(turned[1][1:], got[1][1:])
    for before, after, new in zip(pages, got, (k, v)):
        want = before.copy()
        for token, slot in enumerate(slots[:3]):
            want[slot // 4, :, slot % 4] = new[token]
        np.testing.assert_array_equal(after[1:], want[1:])
        assert np.isfinite(after[0]).all()


def test_copying_takes_the_first_pairs_only():
    pages = np.random.default_rng(0).normal(size=(6, 2, 4, 8)).astype(np.float32)
    source, destination = jnp.array([1, 3, 5, 0]), jnp.array([2, 4, 1, 0])
    got = copy_pages(jnp.asarray(pages), source, destination, jnp.asarray(2))
    want = pages.copy()
    want[2], want[4] = pages[1], pages[3]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": np.zeros((3, 8))}, r"q must be \[num_tokens, num_heads, head_dim\]"),
        ({"q": np.zeros((3, 3, 8))}, "num_heads a multiple of num_kv_heads"),
        ({"q": np.zeros((3, 4, 16))}, "head_dim must be equal"),
        ({"k_pages": np.zeros((3, 2, 4, 8))}, "k_pages and v_pages must both be"),
        ({"kv_lens": np.zeros(9, np.int32)}, "needs kv_lens"),
        ({"query_start": np.zeros(9, np.int32)}, "query_start"),
        ({"backend": "cuda"}, "backend='cuda' is unknown"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    names = ("q", "k_pages", "v_pages", "block_tables", "kv_lens", "query_start")
    arguments = dict(zip(names, CASES["decode"].arguments())) | change
    with pytest.raises(ValueError, match=message):
        ragged_paged_attention(**arguments)
