"""Pages in host memory: how many move at once, and that every bit comes back."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.contract import KVLayout
from paxkv.cache.pages import PageLayout, allocate
from paxkv.cache.swap import HostPages, chunk_sizes, chunks, gather_pages, scatter_pages
from paxkv.memory import Transfers
from tests.engine.tiny import Tiny, greedy, ids


@pytest.mark.parametrize("sizes", [(1, 1), (1, 4), (2, 16), (8, 64)])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 16, 31, 32, 33, 64, 200])
def test_chunks_hold_all_pages_and_little_more(sizes: tuple[int, int], count: int) -> None:
    small, large = sizes
    found = chunks(sizes, count)
    assert set(found) <= {small, large}
    assert count <= sum(found) < count + max(small, large // 2)
    assert all(sum(found[:index]) < count for index in range(len(found)))


def any_bits(random: np.random.Generator, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Infinities, denormals and plain NaN too; XLA moves bfloat16 by way of float32 on the CPU,
    which costs other NaNs their payload."""
    size = np.dtype(dtype).itemsize
    bits = np.frombuffer(random.bytes(math.prod(shape) * size), f"u{size}").copy()
    if size == 1:
        return bits.view(dtype).reshape(shape)
    exponent, fraction = {2: (0x7C00, 0x03FF), 4: (0x7F800000, 0x007FFFFF)}[size]
    if dtype == jnp.bfloat16:
        exponent, fraction = 0x7F80, 0x007F
    nan = (bits & exponent == exponent) & (bits & fraction != 0)
    bits[nan] = exponent | (fraction + 1) >> 1
    return bits.view(dtype).reshape(shape)


@pytest.mark.parametrize(
    "dtype", [np.float32, jnp.bfloat16, np.float16, np.int8, jnp.float8_e4m3fn]
)
@pytest.mark.parametrize("transposed_keys", [False, True])
def test_every_bit_comes_back(dtype: type, transposed_keys: bool) -> None:
    layout = PageLayout(2, 3, 4, 8, np.dtype(dtype), KVLayout(transposed_keys))
    random = np.random.default_rng(0)
    pages = [
        tuple(jnp.asarray(any_bits(random, a.shape, a.dtype)) for a in pair)
        for pair in allocate(layout, 12)
    ]
    before = [[np.asarray(a) for a in pair] for pair in pages]
    host = HostPages(layout, 9)
    devices, hosts = np.array([3, 11, 7, 0], np.int32), np.array([9, 1, 4])
    host.write(hosts, jax.jit(gather_pages)(pages, devices))
    targets = np.array([5, 2, 10, 0], np.int32)
    scatter = jax.jit(partial(scatter_pages), donate_argnums=0)
    content = host.read(hosts, 4)
    after = [
        scatter((pair,), content, targets, np.int32(layer))[0] for layer, pair in enumerate(pages)
    ]
    for old, new in zip(before, after):
        assert len(new) == (4 if layout.quantized else 2)
        for was, now in zip(old, map(np.asarray, new)):
            assert now[targets[:3]].tobytes() == was[devices[:3]].tobytes()
            kept = [page for page in range(1, 12) if page not in targets]
            assert now[kept].tobytes() == was[kept].tobytes()
            assert not now[0].any(), "padding leaves zeros in page 0"


def test_a_step_reads_what_leaves_before_it_writes_what_arrives() -> None:
    tiny = Tiny(deterministic=True, preemption_mode="swap", num_cpu_blocks_override=4)
    runner = tiny.engine.runner
    tiny.tokens(ids(20), greedy(1))
    first, second = (np.asarray(runner._pages[0][0])[page] for page in (1, 2))
    assert not np.array_equal(first, second)

    def move(out: list[tuple[int, int]], into: list[tuple[int, int]]) -> None:
        columns = [np.array(c, np.int32) for pairs in (out, into) for c in zip(*pairs)]
        nothing = [np.zeros(0, np.int32)] * 2
        runner.transfer(Transfers(*(columns if into else [*columns, *nothing])))
        runner.swapper.land(runner.swapper.num_landing)

    move([(1, 3)], [])
    move([(2, 4)], [(3, 2)])
    move([(1, 1)], [(4, 1)])
    assert np.array_equal(np.asarray(runner._pages[0][0])[2], first)
    assert np.array_equal(np.asarray(runner._pages[0][0])[1], second)


def test_programs_move_at_most_16_mib() -> None:
    smollm = PageLayout(30, 3, 16, 64, np.dtype(np.float32))
    assert chunk_sizes(smollm) == (2, 16)
    assert chunk_sizes(PageLayout(80, 8, 128, 128, np.dtype(np.float32))) == (1, 1)
    assert chunk_sizes(PageLayout(2, 2, 4, 8, np.dtype(np.float32))) == (8, 64)
