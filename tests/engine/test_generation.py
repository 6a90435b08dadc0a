"""Greedy tokens of the engine against the dense float64 decoder, whatever the engine's settings."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from paxkv.models.config import ModelConfig
from tests.engine import dense_reference
from tests.engine.tiny import CONFIG, Tiny, greedy, ids, params

LENGTHS = ((1, 9), (3, 20), (4, 12), (17, 24), (40, 7), (63, 16), (90, 10))
PROMPTS = [ids(length, salt=length) for length, _ in LENGTHS]


@cache
def expected(config: ModelConfig = CONFIG) -> list[tuple[list[int], list[float]]]:
    return [
        dense_reference.greedy(params(config), config, prompt, count)
        for prompt, (_, count) in zip(PROMPTS, LENGTHS, strict=True)
    ]


def assert_same(outputs: list[Any], order: Any = None, config: ModelConfig = CONFIG) -> None:
    """Identical up to the first token whose two best logits are within 1e-3 (DESIGN.md 12)."""
    order = range(len(PROMPTS)) if order is None else order
    for output, index in zip(outputs, order, strict=True):
        want, gaps = expected(config)[index]
        got = output.outputs[0].token_ids
        assert len(got) == len(want)
        for position, (a, b) in enumerate(zip(got, want, strict=True)):
            if gaps[position] < 1e-3:
                break
            assert a == b, f"prompt {index}, token {position}"


def test_references_have_hardly_any_ties() -> None:
    gaps = [gap for _, gaps in expected() for gap in gaps]
    assert np.mean(np.array(gaps) < 1e-3) < 0.05


VARIANTS: list[dict[str, Any]] = [
    {"block_size": 1},
    {"block_size": 16},
    {"block_size": 64},
    {"max_num_batched_tokens": 8},
    {"max_num_batched_tokens": 13, "max_num_seqs": 5},
    {"enable_prefix_caching": False},
    {"max_num_seqs": 1},
    {"layers_per_program": 1},
    {"num_gpu_blocks_override": 26},
    {"num_gpu_blocks_override": 26, "enable_prefix_caching": False},
]


def assert_dense_tokens(options: dict[str, Any]) -> None:
    tiny = Tiny(**options)
    assert_same(tiny.generate(PROMPTS, [greedy(count) for _, count in LENGTHS]))
    stats = tiny.engine.stats()
    assert stats.free_blocks == stats.num_blocks
    assert stats.running == stats.waiting == 0
    assert max(stats.tokens_per_step) <= tiny.options.max_num_batched_tokens


@pytest.mark.parametrize(
    "options", VARIANTS, ids=lambda options: ", ".join(f"{k}={v}" for k, v in options.items())
)
def test_any_settings_give_the_dense_tokens(options: dict[str, Any]) -> None:
    """One bucket, so that each variant compiles little; the next test has all buckets."""
    assert_dense_tokens({"deterministic": True, **options})


def test_all_buckets_give_the_dense_tokens() -> None:
    assert_dense_tokens({})


def test_sliding_window() -> None:
    config = ModelConfig(**{**CONFIG.__dict__, "sliding_window": 9})
    tiny = Tiny(config, deterministic=True)
    outputs = tiny.generate(PROMPTS, [greedy(count) for _, count in LENGTHS])
    assert_same(outputs, config=config)


def test_preemption_is_invisible() -> None:
    tiny = Tiny(num_gpu_blocks_override=20, deterministic=True)
    prompts = [ids(24, salt=k) for k in range(8)]
    outputs = tiny.generate(prompts, greedy(30))
    assert tiny.engine.stats().preemptions >= 3
    for prompt, output in zip(prompts, outputs, strict=True):
        want, gaps = dense_reference.greedy(params(), CONFIG, prompt, 30)
        until = next((i for i, gap in enumerate(gaps) if gap < 1e-3), 30)
        assert output.outputs[0].token_ids[:until] == want[:until]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_order_and_arrival_do_not_matter(seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(PROMPTS)).tolist()
    tiny = Tiny(num_gpu_blocks_override=60, deterministic=True)
    requests = []
    for index in order:
        requests.append(tiny.add(PROMPTS[index], greedy(LENGTHS[index][1])))
        tiny.engine.step()
    tiny.run()
    assert_same([request.output() for request in requests], order)


def test_padding_page_and_unused_slots_are_never_read() -> None:
    """NaN everywhere that nothing was written: one read of it would spread to every token."""
    tiny = Tiny()
    runner = tiny.engine.runner
    runner._pages = [(k.at[:].set(np.nan), v.at[:].set(np.nan)) for k, v in runner._pages]
    assert_same(tiny.generate(PROMPTS, [greedy(count) for _, count in LENGTHS]))


def test_prefix_hits_in_the_step_that_fills_the_block() -> None:
    base = ids(32)
    prompts = [base + ids(5, salt=k) for k in range(6)] + [ids(30, salt=99)]
    solo = [Tiny(deterministic=True).tokens(prompt, greedy(8)) for prompt in prompts]
    tiny = Tiny(max_num_batched_tokens=256, deterministic=True)
    outputs = tiny.generate(prompts, greedy(8))
    assert [output.outputs[0].token_ids for output in outputs] == solo
    assert [output.num_cached_tokens for output in outputs] == [0, 32, 32, 32, 32, 32, 0]
    assert tiny.engine.stats().prefix_cache_hits == 5 * 32


def test_steady_traffic_compiles_nothing() -> None:
    tiny = Tiny(max_num_seqs=7, max_num_batched_tokens=33, enforce_eager=False)
    before = tiny.engine.stats().compiled_programs
    for length in (1, 2, 3, 4, 5, 32, 33, 34, 100):
        tiny.tokens(ids(length), greedy(3))
    tiny.generate([ids(k + 1) for k in range(7)], greedy(20))
    assert tiny.engine.stats().compiled_programs == before
