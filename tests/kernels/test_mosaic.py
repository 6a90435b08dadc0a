"""The Mosaic GPU kernel in Mosaic's interpreter: a short battery against float64.

Every shape costs seconds and every program of a launch tenths of one, so the cases are small.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import pytest

from pallas_kernels import mosaic, ragged_paged_attention
from pallas_kernels.lab.battery import (
    Case,
    batch_mates_change_no_bit,
    check,
    pages_may_stand_anywhere,
    poison_changes_no_bit,
    tables_may_share_pages,
)
from paxkv.models.weights import init_params
from tests.engine.tiny import CONFIG, Tiny, greedy, ids
from tests.kernels.mosaic_interpreter import quick

pytestmark = pytest.mark.skipif(
    jax.__version_info__ < (0, 11), reason="Mosaic's interpreter needs jax 0.11 or newer"
)

if jax.__version_info__ >= (0, 11):
    # The interpreter runs each warpgroup in a thread, which XLA would queue for as many threads as
    # there are cores: with few, warpgroups wait for one that never starts. Read when JAX starts.
    jax.config.update("jax_cpu_enable_async_dispatch", False)

# Several sets of lengths of one shape, which is what costs: (query tokens, cached tokens) each.
Family = tuple[Case, ...]

# Of a page, and of a block of 64 keys.
TAILS = (((0, 0), (1, 1), (1, 15)), ((1, 16), (1, 17), (1, 63)), ((1, 64), (1, 65), (1, 80)))
MIXED = (((1, 9), (17, 33), (0, 0)), ((12, 12), (5, 65), (1, 128)))


def family(name: str, lengths: Any, group: int, **sizes: Any) -> Family:
    """Of bfloat16, with one key head unless said otherwise."""
    kv_heads = sizes.pop("kv_heads", 1)
    sizes = {"dtype": "bfloat16", "heads": group * kv_heads, "kv_heads": kv_heads} | sizes
    page_size = sizes.get("page_size", 16)
    pages = [[-(-cached // page_size) for _, cached in each] for each in lengths]
    tokens = [sum(count for count, _ in each) for each in lengths]
    sizes |= {"width": max(map(max, pages)) + 2, "num_pages": max(map(sum, pages)) + 4}
    return tuple(
        Case(name, each, padding=max(tokens) - count, seed=seed, **sizes)
        for seed, (each, count) in enumerate(zip(lengths, tokens, strict=True))
    )


FAMILIES = (
    family("group 3, mixed", MIXED, 3),
    family("group 3", TAILS, 3),
    family("group 1, mixed", MIXED[:1], 1),
    family("group 4, two key heads, mixed", MIXED[:1], 4, kv_heads=2),
    family("window of a page", (((1, 16), (1, 17)), ((1, 33), (1, 100))), 3, window=16),
    family("window of a page and one, mixed", MIXED[:1], 4, window=17),
    family("sinks, softcap and scale, mixed", MIXED[:1], 3, sinks=True, scale=0.3, softcap=1.5),
    family("split, more blocks than stages", (((1, 700), (1, 513)), ((0, 0), (1, 1))), 3),
    family("head 80, page 8, mixed", MIXED[:1], 3, page_size=8, head_dim=80),
    family("head 96, page 32, mixed", MIXED[:1], 5, page_size=32, head_dim=96),
    family("head 128, page 64, mixed", MIXED[:1], 4, page_size=64, head_dim=128),
)
MORE_FAMILIES = (
    family("group 1", TAILS, 1),
    family("group 4, two key heads", TAILS, 4, kv_heads=2),
    family("longer than a tile", (((70, 90),),), 3),
    family("softcap and sinks", TAILS, 3, softcap=2.0, sinks=True),
    family("more blocks than stages, window", (((1, 700),), ((1, 601),)), 3, window=600),
    family("more blocks than stages, mixed", (((9, 400), (1, 2)),), 4),
    family("head 80, page 8", (((1, 17), (1, 70)),), 1, page_size=8, head_dim=80),
    family("head 128, page 64", (((1, 63), (1, 65)),), 4, page_size=64, head_dim=128),
    family("head 128, page 128", (((1, 127), (1, 193)),), 8, page_size=128, head_dim=128),
    family("float16, mixed", MIXED, 3, dtype="float16"),
)
PLAIN = Case(
    "plain",
    ((1, 15), (1, 16), (1, 17), (1, 32), (1, 33), (1, 48), (1, 129), (1, 1)),
    dtype="bfloat16",
    heads=3,
    kv_heads=1,
)
SPLIT = mosaic.Config(mosaic.Tile(splits=2), mosaic.Tile())


@lru_cache
def attention(config: mosaic.Config | None = None) -> Any:
    # Compiled as one program: op by op, as many compilations as operations.
    return jax.jit(
        partial(ragged_paged_attention, backend="mosaic", config=config),
        static_argnames=("scale", "window", "softcap", "return_lse"),
    )


@pytest.fixture(autouse=True)
def quick_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    if not quick(monkeypatch):
        warnings.warn(
            "Mosaic's interpreter is not quickened: minutes instead of seconds", stacklevel=1
        )


@pytest.mark.parametrize("cases", FAMILIES, ids=lambda cases: cases[0].name)
def test_against_float64(cases):
    for case in cases:
        check(attention(), case)


@pytest.mark.full
@pytest.mark.parametrize("cases", MORE_FAMILIES, ids=lambda cases: cases[0].name)
def test_more_against_float64(cases):
    for case in cases:
        check(attention(), case)


@pytest.mark.parametrize(
    "holds", [batch_mates_change_no_bit, poison_changes_no_bit], ids=lambda holds: holds.__name__
)
def test_property(holds):
    holds(attention(SPLIT), PLAIN)


@pytest.mark.full
@pytest.mark.parametrize(
    "holds", [pages_may_stand_anywhere, tables_may_share_pages], ids=lambda holds: holds.__name__
)
def test_more_properties(holds):
    holds(attention(SPLIT), PLAIN)


@pytest.mark.full
def test_two_warpgroups_multiply():
    """Three threads, for which a machine of two cores needs luck."""
    two = mosaic.Config(mosaic.Tile(), mosaic.Tile(consumers=2))
    check(attention(two), family("two warpgroups", MIXED[:1], 3)[0])


def test_the_engine_gives_the_tokens_of_the_xla_path() -> None:
    """Two layers, two requests of four tokens each. In float16, for bfloat16 rounds two logits of
    this model to the wrong order.
    """
    config = replace(CONFIG, num_heads=3, num_kv_heads=1, head_dim=64)
    weights = init_params(config, jax.random.key(7), dtype="float16", scale=0.4)

    def answers(backend: str) -> tuple[list[list[int]], str]:
        tiny = Tiny(
            config,
            weights,
            attention_backend=backend,
            block_size=8,
            num_gpu_blocks_override=12,
            max_num_seqs=2,
            max_num_batched_tokens=16,
            max_model_len=32,
        )
        outputs = tiny.generate([ids(9), ids(3, salt=1)], greedy(4))
        return [o.outputs[0].token_ids for o in outputs], tiny.engine.stats().attention

    want, _ = answers("xla")
    got, chosen = answers("mosaic")
    assert got == want
    assert chosen.startswith("mosaic (asked for by name")
