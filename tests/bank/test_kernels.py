"""Bug bank, attention on the XLA path: lengths, poison, and whose slots a step writes to."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest

from pallas_kernels import ragged_paged_attention
from tests.bank.engines import bucketed, small, tokens
from tests.engine.tiny import greedy, ids

HEADS, KV_HEADS, DIM, BLOCK, COLUMNS = 9, 3, 64, 16, 32
MOST_TOKENS = 64
attention = jax.jit(partial(ragged_paged_attention, return_lse=True))


def dense(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """q `[n, heads, dim]` are the last positions of k, v `[length, kv_heads, dim]`; float64."""
    n, length = len(q), len(k)
    k = np.repeat(k.astype(np.float64), HEADS // KV_HEADS, axis=1)
    v = np.repeat(v.astype(np.float64), HEADS // KV_HEADS, axis=1)
    score = np.einsum("qhd,khd->hqk", q.astype(np.float64), k) / np.sqrt(DIM)
    later = np.arange(length) > (length - n + np.arange(n))[:, None]
    score[:, later] = -np.inf
    weight = np.exp(score - score.max(-1, keepdims=True))
    weight /= weight.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weight, v)


def check(lengths: list[int], queries: list[int], seed: int = 0, poison: float = np.nan) -> None:
    """Sequences of these lengths and query counts against the dense answer.

    Everything a sequence does not own is poison: page 0, free pages, the slots behind its last
    token; and the table's unused cells name a page of poison.
    """
    random = np.random.default_rng(seed)
    num_seqs = 8
    pages = random.permutation(np.arange(2, 2 + num_seqs * COLUMNS))
    shape = (2 + num_seqs * COLUMNS, KV_HEADS, BLOCK, DIM)
    k_pages, v_pages = np.full(shape, poison, np.float32), np.full(shape, poison, np.float32)
    tables = np.ones((num_seqs, COLUMNS), np.int32)
    kv_lens = np.zeros(num_seqs, np.int32)
    starts = np.zeros(num_seqs + 1, np.int32)
    q = np.full((MOST_TOKENS, HEADS, DIM), 3.0, np.float32)
    expected, used = [], 0
    for row, (length, count) in enumerate(zip(lengths, queries)):
        k = random.standard_normal((length, KV_HEADS, DIM)).astype(np.float32)
        v = random.standard_normal((length, KV_HEADS, DIM)).astype(np.float32)
        for position in range(length):
            column, offset = divmod(position, BLOCK)
            page = tables[row, column] = pages[row * COLUMNS + column]
            k_pages[page, :, offset], v_pages[page, :, offset] = k[position], v[position]
        kv_lens[row] = length
        if length:
            q[used : used + count] = random.standard_normal((count, HEADS, DIM))
            expected.append(dense(q[used : used + count], k, v))
            used += count
        starts[row + 1] = used
    starts[len(lengths) + 1 :] = used
    out, lse = attention(q, k_pages, v_pages, tables, kv_lens, starts)
    out, lse = np.asarray(out), np.asarray(lse)
    np.testing.assert_allclose(out[:used], np.concatenate(expected), atol=1e-5, rtol=1e-5)
    assert (out[used:] == 0).all()
    assert np.isneginf(lse[used:]).all()
    assert np.isfinite(lse[:used]).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_kr_01_every_length_up_to_three_blocks(poison: float) -> None:
    lengths = [*range(1, 3 * BLOCK + 2), 63, 64, 65, 127, 128, 129, 500]
    for first in range(0, len(lengths), 8):
        part = lengths[first : first + 8]
        check(part, [1] * len(part), seed=first, poison=poison)


def test_kr_01_every_tail_of_a_chunk_of_queries() -> None:
    for length in (1, 15, 16, 17, 31, 33, 48, 129):
        for count in {1, 2, min(15, length), min(16, length), min(17, length), min(33, length)}:
            if count <= length:
                check([length], [count], seed=length)


def test_kr_01_rows_of_length_zero_among_others() -> None:
    check([0, 1, 16, 17, 0, 33], [0, 1, 1, 1, 0, 1])
    check([0, 1, 16, 17, 0, 33, 0, 40], [0, 1, 16, 3, 0, 33, 0, 2])


# The engine's slots


@pytest.mark.parametrize(
    "mix", [[1, 1], [16, 1], [15, 17, 1], [33, 2, 16, 64], [1] * 7, [4, 3, 5, 8, 7, 9]], ids=str
)
def test_kr_03_each_row_of_a_batch_equals_its_solo_run(mix: list[int]) -> None:
    prompts = [ids(length, salt=k) for k, length in enumerate(mix)]
    tiny = small()
    together = [tokens(output) for output in tiny.generate(prompts, greedy(10))]
    tiny.engine.block_manager.reset_prefix_cache()
    assert together == [tiny.tokens(prompt, greedy(10)) for prompt in prompts]


def test_kr_03_steps_with_padding_write_to_nobody_elses_slots() -> None:
    tiny = bucketed(num_gpu_blocks_override=20)
    runner, memory = tiny.engine.runner, tiny.engine.block_manager
    held = tiny.add(ids(9), greedy(30))
    for _ in range(3):
        tiny.engine.step()
    sequence = held.sequences[0]
    slots = memory.slots(np.full(9, sequence.row), np.arange(9))

    def content() -> list[np.ndarray]:
        page, offset = np.divmod(slots, 4)
        # Keys lie by dimension on the XLA path, values by slot.
        return [
            found
            for keys, values in runner._pages
            for found in (np.asarray(keys)[page, :, :, offset], np.asarray(values)[page, :, offset])
        ]

    before = content()
    tiny.add(ids(3, salt=1), greedy(9))
    tiny.add(ids(21, salt=2), greedy(5))
    for _ in range(8):
        tiny.engine.step()
    for old, new in zip(before, content()):
        np.testing.assert_array_equal(old, new)
    used = {int(p) for row in memory.live_rows for p in memory.row_pages(int(row))}
    free = [p for p in range(1, 21) if p not in used]
    assert free
    assert 0 not in used
    tiny.run()
