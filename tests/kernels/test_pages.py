"""Writing to pages and copying them, on every back end."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import copy_pages, write_kv, xla

BACK_ENDS = pytest.mark.parametrize("backend", ["xla", "triton"])
PAGES, HEADS, SIZE, DIM = 6, 3, 4, 24


@BACK_ENDS
def test_writing_touches_its_slots_only(backend):
    random = np.random.default_rng(0)
    pages = random.normal(size=(2, PAGES, HEADS, SIZE, DIM)).astype(np.float32)
    k, v = random.normal(size=(2, 5, HEADS, DIM)).astype(np.float32)
    slots = np.array([21, 4, 7, 0, 0], np.int32)
    write = jax.jit(partial(write_kv, backend=backend))
    got = write(*(jnp.asarray(x) for x in pages), k, v, slots)
    for before, after, new in zip(pages, got, (k, v), strict=True):
        want = before.copy()
        for token, slot in enumerate(slots[:3]):
            want[slot // SIZE, :, slot % SIZE] = new[token]
        np.testing.assert_array_equal(after[1:], want[1:])
        assert np.isfinite(after[0]).all()


def test_keys_written_by_dim_are_the_same_keys():
    random = np.random.default_rng(0)
    pages = random.normal(size=(2, PAGES, HEADS, SIZE, DIM)).astype(np.float32)
    k, v = random.normal(size=(2, 3, HEADS, DIM)).astype(np.float32)
    slots = np.array([21, 4, 7], np.int32)
    want = write_kv(*(jnp.asarray(x) for x in pages), k, v, slots)
    turned = jnp.asarray(np.swapaxes(pages[0], 2, 3))
    got = xla.write_kv(turned, jnp.asarray(pages[1]), k, v, slots, layout=xla.page_layout)
    np.testing.assert_array_equal(np.swapaxes(got[0], 2, 3), want[0])
    np.testing.assert_array_equal(got[1], want[1])


@BACK_ENDS
@pytest.mark.parametrize("dtype", [jnp.int8, jnp.float8_e4m3fn], ids=["int8", "float8"])
def test_quantized_pages_hold_what_was_written(dtype, backend):
    random = np.random.default_rng(0)
    k, v = random.normal(size=(2, 4, HEADS, DIM)).astype(np.float32) * 5
    k[1, 2] = 0
    slots = np.array([5, 11, 20, 0], np.int32)
    pages = [np.zeros((PAGES, HEADS, SIZE, DIM), dtype) for _ in range(2)]
    factors = [np.full((PAGES, SIZE, HEADS), 7, np.float32) for _ in range(2)]
    write = jax.jit(partial(write_kv, backend=backend))
    got = write(*pages, k, v, slots, k_scale=factors[0], v_scale=factors[1])
    k_pages, v_pages, k_scale, v_scale = (np.asarray(x) for x in got)
    step = 1 / 254 if dtype == jnp.int8 else 1 / 16
    for new, held, factor in ((k, k_pages, k_scale), (v, v_pages, v_scale)):
        assert held.dtype == dtype
        for token, slot in enumerate(slots[:3]):
            page, offset = divmod(int(slot), SIZE)
            read = held[page, :, offset].astype(np.float64) * factor[page, offset][:, None]
            most = np.abs(new[token]).max(-1, keepdims=True)
            assert (np.abs(read - new[token]) <= 1.01 * step * most).all()
        untouched = np.ones((PAGES, SIZE), bool)
        untouched.reshape(-1)[slots] = False
        untouched[0] = False
        assert (factor[untouched] == 7).all()


@BACK_ENDS
@pytest.mark.parametrize("shape", [(PAGES, HEADS, SIZE, DIM), (PAGES, SIZE, 3), (PAGES, 5000)])
def test_copying_takes_the_first_pairs_only(shape, backend):
    pages = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    source, destination = jnp.array([1, 3, 5, 0]), jnp.array([2, 4, 1, 0])
    copy = jax.jit(partial(copy_pages, backend=backend))
    got = copy(jnp.asarray(pages), source, destination, jnp.asarray(2))
    want = pages.copy()
    want[2], want[4] = pages[1], pages[3]
    np.testing.assert_array_equal(got, want)


@BACK_ENDS
def test_pages_are_written_and_copied_in_place(backend):
    """Donated pages come back in their own buffer: nothing is held twice."""
    pages = [jnp.zeros((PAGES, HEADS, SIZE, DIM)) for _ in range(2)]
    new = jnp.ones((2, HEADS, DIM))
    step = jax.jit(partial(write_kv, backend=backend), donate_argnums=(0, 1))
    text = step.lower(*pages, new, new, jnp.array([4, 5])).compile().as_text()
    assert "input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }" in text


def test_both_factors_or_neither():
    pages = np.zeros((2, 1, 4, 8), np.int8)
    new = np.zeros((1, 1, 8), np.float32)
    with pytest.raises(ValueError, match="k_scale and v_scale must both be given"):
        write_kv(pages, pages, new, new, np.array([4]), k_scale=np.zeros((2, 4, 1)))


@BACK_ENDS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "float8_e4m3fn"])
def test_copies_keep_every_bit_whatever_else_is_copied(dtype, backend):
    """Of any pattern but the payload of a NaN, which XLA's CPU does not keep in bfloat16."""
    kind = jnp.dtype(dtype)
    raw = np.random.default_rng(0).integers(0, 256, (9, HEADS, SIZE, DIM * kind.itemsize), np.uint8)
    if dtype == "bfloat16":
        raw.view(kind)[np.isnan(raw.view(kind).astype(np.float32))] = np.nan
    pages = jnp.asarray(raw.view(kind))
    copy = jax.jit(partial(copy_pages, backend=backend))
    for pairs in ([(1, 5)], [(2, 6), (1, 5), (3, 7)], [(4, 8), (3, 7), (2, 6), (1, 5)]):
        # What stands behind the pairs is not to be copied.
        source, destination = np.full(4, 1, np.int32), np.full(4, 8, np.int32)
        for place, pair in enumerate(pairs):
            source[place], destination[place] = pair
        got = np.asarray(copy(pages, source, destination, jnp.asarray(len(pairs)))).view(np.uint8)
        want = raw.copy()
        for here, there in pairs:
            want[there] = raw[here]
        np.testing.assert_array_equal(got, want)


@BACK_ENDS
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float8_e4m3fn"])
def test_what_is_written_does_not_depend_on_the_tokens_beside_it(dtype, backend):
    random = np.random.default_rng(0)
    k, v = random.normal(size=(2, 5, HEADS, DIM)).astype(np.float32) * 3
    slots = np.array([21, 4, 7, 13, 18], np.int32)
    pages = [np.zeros((PAGES, HEADS, SIZE, DIM), jnp.dtype(dtype)) for _ in range(2)]
    options = {}
    if dtype != "bfloat16":
        options = {
            name: np.zeros((PAGES, SIZE, HEADS), np.float32) for name in ("k_scale", "v_scale")
        }
    write = jax.jit(partial(write_kv, backend=backend))

    def written(tokens, at):
        """What stands in the slots of these tokens, the others being padding full of NaN."""
        new = np.full((2, *k.shape), np.nan, np.float32)
        there = np.zeros_like(slots)
        new[:, at], there[at] = (k[tokens], v[tokens]), slots[tokens]
        held = [np.asarray(x) for x in write(*pages, *new, there, **options)]
        page, offset = np.divmod(slots[tokens], SIZE)
        return [held[i][page, :, offset] for i in (0, 1)] + [x[page, offset] for x in held[2:]]

    every = np.arange(5)
    together = written(every, every)
    assert all(np.any(x != 0) for x in together)
    for tokens, at in ((every[::-1], every), (every[:1], every[3:4]), (every[1::2], every[:2])):
        for found, want in zip(written(tokens, at), together):
            np.testing.assert_array_equal(found.view(np.uint8), want[tokens].view(np.uint8))


@BACK_ENDS
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": np.zeros((1, 1, 8))}, r"k must be \[num_tokens, num_kv_heads, head_dim\]"),
        ({"v": np.zeros((2, 3, 8))}, r"v must be \[num_tokens, num_kv_heads, head_dim\]"),
        ({"slot_mapping": np.zeros(2, np.int32)}, "for slot_mapping"),
        ({"k_scale": np.zeros((2, 4, 1)), "v_scale": np.zeros((2, 4, 3))}, "k_scale must be"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_the_pages_is_refused(change, message, backend):
    """Broadcasting would write one head's keys to all."""
    new = np.zeros((1, 3, 8), np.float32)
    given = {"k": new, "v": new, "slot_mapping": np.array([4])} | change
    pages = np.zeros((2, 3, 4, 8), np.int8)
    with pytest.raises(ValueError, match=message):
        write_kv(pages, pages, **given, backend=backend)


def test_a_back_end_for_pages_is_named():
    pages, none = np.zeros((2, 3, 4, 8)), np.zeros(0, np.int32)
    with pytest.raises(ValueError, match="backend='auto' must be 'xla', 'triton' or 'mosaic'"):
        copy_pages(pages, none, none, 0, backend="auto")
