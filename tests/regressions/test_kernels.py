"""Bug bank, attention: lengths, poison, whose slots a step writes to, and heads that are shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import pytest

from pallas_kernels import ragged_paged_attention
from pallas_kernels.lab.battery import Case, build
from paxkv import LLM
from paxkv.capacity.model_bytes import kv_bytes_per_token, model_bytes
from paxkv.engine.runner.model_input import ModelInput
from paxkv.models.config import ModelConfig
from tests.engine.tiny import CONFIG, Tiny, greedy, ids
from tests.regressions.engines import assert_dense, small, tokens

HEADS, KV_HEADS, DIM, BLOCK, COLUMNS = 9, 3, 64, 16, 32
MOST_TOKENS = 64
BACK_ENDS = pytest.mark.parametrize("backend", ["xla", "triton"])


@cache
def attention(backend: str) -> Callable[..., Any]:
    return jax.jit(partial(ragged_paged_attention, backend=backend, return_lse=True))


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


def check(
    backend: str,
    lengths: list[int],
    queries: list[int],
    seed: int = 0,
    poison: float = np.nan,
) -> tuple[np.ndarray, np.ndarray]:
    """Sequences of these lengths and query counts against the dense answer; returns what was found.

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
    q = np.full((MOST_TOKENS, HEADS, DIM), poison, np.float32)
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
    found = attention(backend)(q, k_pages, v_pages, tables, kv_lens, starts)
    out, lse = (np.asarray(x) for x in found)
    np.testing.assert_allclose(out[:used], np.concatenate(expected), atol=1e-5, rtol=1e-5)
    assert (out[used:] == 0).all()
    assert np.isneginf(lse[used:]).all()
    assert np.isfinite(lse[:used]).all()
    return out, lse


@BACK_ENDS
def test_kr_01_every_length_up_to_three_blocks(backend: str) -> None:
    lengths = [*range(1, 3 * BLOCK + 2), 63, 64, 65, 127, 128, 129, 500]
    for first in range(0, len(lengths), 8):
        part = lengths[first : first + 8]
        check(backend, part, [1] * len(part), seed=first)


@BACK_ENDS
def test_kr_01_every_tail_of_a_chunk_of_queries(backend: str) -> None:
    for length in (1, 15, 16, 17, 31, 33, 48, 129):
        for count in sorted({min(n, length) for n in (1, 2, 15, 16, 17, 33)}):
            check(backend, [length], [count], seed=length)


@BACK_ENDS
def test_kr_01_rows_of_length_zero_among_others(backend: str) -> None:
    check(backend, [0, 1, 16, 17, 0, 33], [0, 1, 1, 1, 0, 1])
    check(backend, [0, 1, 16, 17, 0, 33, 0, 40], [0, 1, 16, 3, 0, 33, 0, 2])


@BACK_ENDS
def test_kr_01_poison_changes_no_bit(backend: str) -> None:
    lengths, queries = [500, 1, 16, 17, 0, 33, 48, 129], [1, 1, 16, 3, 0, 1, 7, 20]
    want = check(backend, lengths, queries, poison=0.0)
    for poison in (np.nan, np.inf, -np.inf, 1e30):
        for a, b in zip(want, check(backend, lengths, queries, poison=poison)):
            np.testing.assert_array_equal(a, b, err_msg=f"poison {poison}")


# The engine's slots


MIXES = pytest.mark.parametrize(
    "mix", [[1, 1], [16, 1], [15, 17, 1], [33, 2, 16, 64], [1] * 7, [4, 3, 5, 8, 7, 9]], ids=str
)


@MIXES
@pytest.mark.parametrize("apart", [0, 2], ids=["at once", "two steps apart"])
def test_kr_03_each_row_of_a_batch_equals_its_solo_run(mix: list[int], apart: int) -> None:
    """And the dense answer, so that a position that is wrong for both is seen."""
    prompts = [ids(length, salt=k) for k, length in enumerate(mix)]
    tiny = small()
    requests = []
    for prompt in prompts:
        requests.append(tiny.add(prompt, greedy(10)))
        for _ in range(apart):
            tiny.engine.step()
    tiny.run()
    together = [tokens(request.output()) for request in requests]
    tiny.engine.block_manager.reset_prefix_cache()
    assert together == [tiny.tokens(prompt, greedy(10)) for prompt in prompts]
    for prompt, found in zip(prompts, together):
        assert_dense(prompt, found)


def held_at(tiny: Tiny, pages: np.ndarray, count: int) -> list[np.ndarray]:
    """Keys and values of the first `count` slots of these pages, layer by layer."""
    page, offset = np.divmod(np.arange(count), tiny.options.block_size)
    found = []
    for keys, values in tiny.engine.runner._pages:
        if tiny.engine.runner.programs.arguments.kernels.page_layout.transposed_keys:
            keys = keys.swapaxes(2, 3)
        found += [np.asarray(x)[pages[page], :, offset] for x in (keys, values)]
    return found


def test_kr_03_each_row_fills_its_own_pages_from_their_start() -> None:
    """What stands behind a row of the table, position by position, is what a solo run computes."""
    lengths = [33, 2, 16, 15, 17]
    tiny = small()
    memory = tiny.engine.block_manager

    def computed(every: list[int]) -> list[list[np.ndarray]]:
        """Keys and values of each prompt and four more tokens."""
        memory.reset_prefix_cache()
        requests = [tiny.add(ids(lengths[k], salt=k), greedy(30)) for k in every]
        for _ in range(12):
            tiny.engine.step()
        rows = [request.sequences[0].row for request in requests]
        assert all(row is not None for row in rows)
        found = [
            held_at(tiny, memory.row_pages(int(row or 0)), lengths[k] + 4)
            for k, row in zip(every, rows)
        ]
        tiny.run()
        return found

    together = computed(list(range(len(lengths))))
    for k, found in enumerate(together):
        for mine, alone in zip(found, computed([k])[0], strict=True):
            np.testing.assert_allclose(mine, alone, rtol=1e-5, atol=1e-5)


@BACK_ENDS
def test_kr_03_a_padded_step_writes_its_own_tokens_and_page_0_only(backend: str) -> None:
    """All bytes of all pages before and after each step; an index of -1 would be the last page."""
    tiny = small(attention_backend=backend)
    runner, memory, size = tiny.engine.runner, tiny.engine.block_manager, tiny.options.block_size
    num_pages = len(runner._pages[0][0])
    forward, padding = runner.forward, []
    steps: list[tuple[set[int], set[int]]] = []

    def content() -> np.ndarray:
        """`[pages * block_size, all that a slot holds]`"""
        found = held_at(tiny, np.arange(num_pages), num_pages * size)
        return np.concatenate([x.reshape(len(x), -1) for x in found], axis=1)

    def watched(plan: ModelInput) -> None:
        view = runner.programs.arguments.packings[plan.shape].unpack(plan.buffer)
        mine = set()
        for row, start, end, length in zip(
            view["rows"], view["query_start"], view["query_start"][1:], view["kv_lens"]
        ):
            for position in range(length - (end - start), length):
                page = memory.tables[row, position // size]
                mine.add(int(page * size + position % size))
        before = content()
        forward(plan)
        changed = np.flatnonzero((content() != before).any(axis=1))
        # An engine survives a step that raises, so the comparison is made at the end.
        steps.append((set(changed[changed >= size].tolist()), mine))
        padding.append(plan.shape.num_tokens - len(mine))

    runner.forward = watched  # type: ignore[method-assign]
    tiny.add(ids(9), greedy(12))
    for _ in range(4):
        tiny.engine.step()
    tiny.add(ids(3, salt=1), greedy(5))
    tiny.add(ids(21, salt=2), greedy(3))
    tiny.run()
    assert len(steps) >= 12
    assert max(padding) > 0
    for changed, mine in steps:
        assert changed == mine


# Heads over devices


def test_kr_04_heads_that_do_not_divide_are_refused() -> None:
    smollm = replace(CONFIG, num_heads=9, num_kv_heads=3)
    for devices in (2, 4):
        with pytest.raises(ValueError, match=f"tensor_parallel_size={devices} .*num_heads=9"):
            planned(smollm, devices)
    # Six heads over two devices, but three key heads: one would be cut.
    with pytest.raises(ValueError, match=r"tensor_parallel_size=2 .*num_kv_heads=3"):
        planned(replace(CONFIG, num_heads=6, num_kv_heads=3), 2)
    with pytest.raises(ValueError, match="num_heads=9 must be a multiple of num_kv_heads=2"):
        replace(CONFIG, num_heads=9, num_kv_heads=2)
    page = np.zeros((2, 2, BLOCK, DIM), np.float32)
    q, table, one = np.zeros((1, 9, DIM), np.float32), np.ones((1, 1), int), np.ones(1, int)
    with pytest.raises(ValueError, match="num_heads a multiple of num_kv_heads"):
        ragged_paged_attention(q, page, page, table, one, np.array([0, 1]))


def test_kr_04_key_heads_are_split_or_copied_and_never_cut() -> None:
    smollm = replace(CONFIG, num_heads=9, num_kv_heads=3)
    whole = kv_bytes_per_token(smollm, "float32")
    assert planned(smollm, 3) * 3 == whole
    few = replace(CONFIG, num_heads=8, num_kv_heads=2)
    assert planned(few, 2) == planned(few, 4) == planned(few, 8) == planned(few, 1) / 2


def test_kr_04_an_engine_does_not_take_more_devices_in_silence() -> None:
    with pytest.raises(ValueError, match="unknown option 'tensor_parallel_size'"):
        LLM("smollm2-135m", tensor_parallel_size=2)


def planned(config: ModelConfig, devices: int) -> int:
    """Bytes of one token's keys and values on each device."""
    return model_bytes(config, "float32", "float32", devices, 16, 4).kv_per_token


@pytest.mark.parametrize(
    ("backend", "heads", "kv_heads", "devices"), [("xla", 9, 3, 3), ("triton", 8, 2, 4)]
)
def test_kr_04_a_devices_share_of_the_heads_is_that_part_of_the_whole(
    backend: str, heads: int, kv_heads: int, devices: int
) -> None:
    """What a device computes from its query heads and one key head, that others may have too."""
    case = Case("share", ((1, 40), (1, 21), (0, 0), (1, 1)), heads=heads, kv_heads=kv_heads)
    given = build(case).arguments
    whole = attention(backend)(**given)
    for device in range(devices):
        mine = slice(device * heads // devices, (device + 1) * heads // devices)
        key_head = mine.start // (heads // kv_heads)
        part = given | {"q": given["q"][:, mine]}
        for pages in ("k_pages", "v_pages"):
            part[pages] = given[pages][:, key_head : key_head + 1]
        for found, want in zip(attention(backend)(**part), whole):
            np.testing.assert_allclose(found, want[:, mine], rtol=1e-5, atol=1e-5)
