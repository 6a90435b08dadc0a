"""Bug bank, prefix cache."""

from __future__ import annotations

from typing import Any

import pytest

import paxkv.engine.build as assembly
from paxkv.memory import BlockManager
from tests.engine.tiny import Tiny, greedy, ids
from tests.regressions.engines import assert_dense, small, tokens


def run(tiny: Tiny, prompt: Any, count: int = 4, **kwargs: Any) -> tuple[list[int], int]:
    request = tiny.add(prompt, greedy(count), **kwargs)
    tiny.run()
    return tokens(request.output()), request.num_cached_tokens


def test_pc_01_equal_hashes_are_not_equal_content(monkeypatch: pytest.MonkeyPatch) -> None:
    def colliding(*args: Any, **kwargs: Any) -> BlockManager:
        return BlockManager(*args, **kwargs, block_hash=lambda *a: b"7" * 32)

    monkeypatch.setattr(assembly, "BlockManager", colliding)
    tiny = small()
    for salt in (0, 1, 2):
        prompt = ids(48, salt=salt)
        assert_dense(prompt, run(tiny, prompt, 8)[0])


def test_pc_02_a_salt_separates_and_an_equal_salt_shares() -> None:
    tiny = small()
    prompt = ids(40)

    def cached(**salt: Any) -> int:
        return run(tiny, {"prompt_token_ids": prompt} | salt)[1]

    assert cached(cache_salt="a") == 0
    assert cached(cache_salt="a") == 36
    assert cached(cache_salt="b") == 0
    assert cached() == 0
    assert cached() == 36
    assert cached(cache_salt="") == 0, "a salt like any other"


def test_pc_02_a_request_can_stay_out_of_the_cache() -> None:
    tiny = small()
    prompt = ids(40)
    for _ in range(2):
        output = tiny.generate([prompt], greedy(4, enable_prefix_caching=False))[0]
        assert output.num_cached_tokens == 0
    assert tiny.engine.stats().cached_blocks == 0
    tiny.generate([prompt], greedy(4))
    assert tiny.generate([prompt], greedy(4, enable_prefix_caching=False))[0].num_cached_tokens == 0
    assert tiny.generate([prompt], greedy(4))[0].num_cached_tokens == 36


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9, 16, 32])
def test_pc_03_a_full_hit_still_computes_a_token(length: int) -> None:
    tiny = small()
    prompt = ids(length, salt=length)
    cold, none = run(tiny, prompt)
    warm, hit = run(tiny, prompt)
    assert none == 0
    assert warm == cold
    assert hit == (length - 1) // 4 * 4
    assert run(tiny, prompt + cold[:1])[1] == length // 4 * 4
    assert_dense(prompt, cold)


def test_pc_03_blocks_of_output_are_hit_by_the_next_turn() -> None:
    tiny = small()
    prompt = ids(10)
    answer, _ = run(tiny, prompt, 15)
    turn = prompt + answer + ids(3, salt=5)
    again, hit = run(tiny, turn)
    assert hit == 24, "10 + 15 tokens, the last of which was never computed"
    assert_dense(turn, again)


def test_pc_04_hits_and_misses_in_one_step_equal_solo_runs() -> None:
    base = ids(24)
    prompts = [base + ids(5, salt=k) for k in range(6)] + [ids(10, salt=99)]
    solo = [run(small(enable_prefix_caching=False), prompt, 8)[0] for prompt in prompts]
    tiny = small()
    outputs = tiny.generate(prompts, greedy(8))
    assert [tokens(output) for output in outputs] == solo
    assert sum(output.num_cached_tokens for output in outputs) == 5 * 24
    computed = sum(map(len, prompts)) - 5 * 24 + 7 * 7
    assert sum(tiny.engine.stats().tokens_per_step) == computed, "a hit is not computed again"


def test_pc_04_a_block_of_a_failed_step_is_not_believed() -> None:
    tiny = small()
    prompt = ids(40)
    tiny.engine.runner.hooks.before_launch = fail
    request = tiny.add(prompt, greedy(4))
    tiny.run()
    assert request.error is not None
    tiny.engine.runner.hooks.before_launch = None
    found, hit = run(tiny, prompt, 8)
    assert hit == 0
    assert_dense(prompt, found)


def fail(step: int) -> None:
    raise RuntimeError("planted")
