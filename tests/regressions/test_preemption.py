"""Bug bank, preemption by recompute."""

from __future__ import annotations

from typing import Any

import pytest

from paxkv.outputs import RequestOutput
from paxkv.sampling.sampling_params import SamplingParams
from tests.engine.tiny import Tiny, greedy, ids
from tests.regressions.engines import assert_dense, assert_idle, small, tokens

SMALL_POOL = 20


def test_ps_01_a_prompt_that_no_cache_holds_is_refused() -> None:
    tiny = small(num_gpu_blocks_override=SMALL_POOL, max_model_len=300)
    with pytest.raises(ValueError, match=r"81 tokens.*cache holds 80"):
        tiny.request(ids(81), greedy(4))
    assert len(tokens(tiny.generate([ids(80)], greedy(4))[0])) == 1
    assert_idle(tiny)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("length", [60, 77, 79, 80])
def test_ps_01_outgrowing_the_cache_ends_with_length(length: int, n: int) -> None:
    """Alone or with children: nobody waits for ever, and others go on."""
    tiny = small(num_gpu_blocks_override=SMALL_POOL)
    large = tiny.add(ids(length), greedy(300, n=n))
    behind = tiny.add(ids(10, salt=1), greedy(6))
    tiny.run()
    for child in large.output().outputs:
        assert child.finish_reason == "length"
        assert 1 <= len(child.token_ids) <= SMALL_POOL * 4 - length + 1
        assert_dense(ids(length), child.token_ids)
    assert len(large.output().outputs[0].token_ids) == SMALL_POOL * 4 - length + 1
    assert large.finished_time is not None
    assert_dense(ids(10, salt=1), tokens(behind.output()))
    assert_idle(tiny)


@pytest.mark.parametrize("length, preemptions", [(72, 1), (76, 0)])
def test_ps_01_two_that_share_a_prefix_and_outgrow_the_cache(length: int, preemptions: int) -> None:
    """The second of 72 tokens runs beside the first for a while, that of 76 only after it."""
    tiny = small(num_gpu_blocks_override=SMALL_POOL)
    for output in tiny.generate([ids(length)] * 2, greedy(300)):
        assert output.outputs[0].finish_reason == "length"
        assert len(tokens(output)) == SMALL_POOL * 4 - length + 1
        assert_dense(ids(length), tokens(output))
    assert tiny.engine.stats().preemptions == preemptions
    assert_idle(tiny)


def test_ps_01_no_two_idle_steps_while_somebody_waits() -> None:
    tiny = small(num_gpu_blocks_override=SMALL_POOL, max_num_seqs=8)
    for k in range(10):
        tiny.add(ids(70 if k % 3 == 0 else 5, salt=k), greedy(30))
    idle = 0
    while tiny.engine.has_work:
        before = tiny.engine.num_steps
        tiny.engine.step()
        idle = idle + 1 if tiny.engine.num_steps == before else 0
        assert idle < 2 or not tiny.engine.stats().waiting
    assert_idle(tiny)


PROMPTS = [ids(20, salt=k) for k in range(6)]


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"frequency_penalty": 0.7, "presence_penalty": 0.4, "repetition_penalty": 1.2},
        {"min_tokens": 28, "ignore_eos": False},
        {"temperature": 0.9, "seed": 5},
        {"temperature": 0.9, "n": 2, "seed": 3},
        {"prompt_logprobs": 2},
    ],
    ids=lambda extra: ", ".join(extra) or "greedy",
)
def test_ps_02_preemption_is_invisible(extra: dict[str, Any]) -> None:
    params = SamplingParams(
        **({"temperature": 0, "max_tokens": 30, "ignore_eos": True, "logprobs": 1} | extra)
    )
    ample, tight = small(), small(num_gpu_blocks_override=SMALL_POOL)
    expected, found = ample.generate(PROMPTS, params), tight.generate(PROMPTS, params)
    assert ample.engine.stats().preemptions == 0
    assert tight.engine.stats().preemptions > 0
    for a, b in zip(expected, found):
        assert_same(a, b)
    assert_idle(tight)


def test_ps_02_twenty_preemptions_are_invisible() -> None:
    prompts = [ids(12 + k % 5, salt=k) for k in range(24)]
    ample, tight = small(), small(num_gpu_blocks_override=SMALL_POOL)
    expected, found = ample.generate(prompts, greedy(50)), tight.generate(prompts, greedy(50))
    assert tight.engine.stats().preemptions >= 20
    assert [tokens(output) for output in found] == [tokens(output) for output in expected]
    for prompt, output in zip(prompts[:3], found):
        assert_dense(prompt, tokens(output))
    assert_idle(tight)


def assert_same(a: RequestOutput, b: RequestOutput) -> None:
    assert len(a.outputs) == len(b.outputs)
    for one, other in zip(a.outputs, b.outputs):
        assert one.token_ids == other.token_ids
        assert (one.finish_reason, one.stop_reason) == (other.finish_reason, other.stop_reason)
        assert_close(one.logprobs, other.logprobs)
    assert_close(a.prompt_logprobs, b.prompt_logprobs)


def assert_close(a: Any, b: Any) -> None:
    assert (a is None) == (b is None)
    for one, other in zip(a or [], b or [], strict=True):
        assert (one is None) == (other is None)
        for token in one or {}:
            assert one[token].logprob == pytest.approx(other[token].logprob, abs=1e-3)


def test_ps_02_priority_decides_who_is_preempted() -> None:
    tiny: Tiny = small(num_gpu_blocks_override=SMALL_POOL)
    low = [tiny.add(ids(20, salt=k), greedy(30)) for k in range(3)]
    for _ in range(3):
        tiny.engine.step()
    high = tiny.add(ids(20, salt=9), greedy(30, priority=5))
    tiny.run()
    assert high.num_preemptions == 0
    assert sum(request.num_preemptions for request in low) > 0
    for request in (*low, high):
        assert_dense(request.prompt_token_ids, tokens(request.output()))
