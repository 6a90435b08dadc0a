"""Bug bank, scheduling, metrics and determinism."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from paxkv.sampling.sampling_params import SamplingParams
from tests.engine.tiny import Tiny, greedy, ids
from tests.regressions.engines import assert_dense, assert_idle, bucketed, small, tokens


def test_sc_01_without_chunks_the_budget_must_hold_any_prompt() -> None:
    with pytest.raises(ValueError, match=r"max_num_batched_tokens=64.*max_model_len=512"):
        small(enable_chunked_prefill=False, max_num_batched_tokens=64)
    tiny = small(enable_chunked_prefill=False, max_num_batched_tokens=128, max_model_len=100)
    outputs = tiny.generate([ids(99), ids(70, salt=1), ids(3)], greedy(9))
    assert max(tiny.engine.stats().tokens_per_step) <= 128
    for output in outputs:
        assert_dense(output.prompt_token_ids, tokens(output))


@pytest.mark.parametrize("budget", [1, 2, 17, 64, 149, 150, 151])
def test_sc_01_any_budget_finishes_any_prompt(budget: int) -> None:
    tiny = small(max_num_batched_tokens=budget, max_num_seqs=min(budget, 8))
    assert_dense(ids(150), tiny.tokens(ids(150), greedy(4)))
    assert max(tiny.engine.stats().tokens_per_step) <= budget


POLICIES: list[dict[str, Any]] = [
    {},
    {"max_num_partial_prefills": 3, "max_long_partial_prefills": 2},
    {"priority_aging_steps": 10, "length_aware": True, "scheduler_delay_factor": 0.1},
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: ", ".join(policy) or "default")
def test_sc_02_decoding_goes_on_while_long_prompts_arrive(policy: dict[str, Any]) -> None:
    tiny = small(num_gpu_blocks_override=400, **policy)
    answer = tiny.add(ids(8), greedy(60))
    lengths, waits, most_waiting = [], {}, 0
    for step in range(120):
        if step % 3 == 0 and step < 60:
            waits[step] = tiny.add(ids(240, salt=step), greedy(2))
        most_waiting = max(most_waiting, tiny.engine.stats().waiting)
        tiny.engine.step()
        lengths.append(len(answer.sequences[0].token_ids))
        for arrived, request in list(waits.items()):
            if request.first_scheduled is not None:
                assert step - arrived < 60, "the oldest waiting request starts in bounded time"
                del waits[arrived]
    assert most_waiting >= 2, "more arrives than a step has room for"
    gains = np.diff(lengths)[:59]
    assert gains.min() == 1, "every running sequence gets a token in every step"
    tiny.run()
    assert_dense(ids(8), tokens(answer.output()))
    assert_idle(tiny)


def test_sc_02_running_work_does_not_postpone_the_oldest_waiting() -> None:
    """A prompt much larger than what decoding leaves of the budget still finishes."""
    tiny = small(max_num_seqs=8, max_num_batched_tokens=9)
    for k in range(7):
        tiny.add(ids(3, salt=k), greedy(100))
    long = tiny.add(ids(60, salt=50), greedy(2))
    for _ in range(50):
        tiny.engine.step()
    assert long.finished
    for request in list(tiny.engine._requests.values()):
        tiny.engine.abort(request.request_id)
    tiny.engine.step()
    assert_idle(tiny)


def test_sc_02_priority_does_not_postpone_others_for_ever_with_ageing() -> None:
    """Urgent work for two rows never ends; what is not urgent has its turn all the same."""
    tiny = small(max_num_seqs=2, priority_aging_steps=10)
    patient = None
    for step in range(90):
        if step % 4 == 0:
            tiny.add(ids(6, salt=step), greedy(12, priority=1))
        if step == 9:  # both rows are taken, and somebody urgent waits
            patient = tiny.add(ids(5), greedy(4))
        tiny.engine.step()
    assert patient is not None
    assert patient.finished
    assert tiny.engine.stats().waiting > 5
    assert_dense(ids(5), tokens(patient.output()))
    for request in list(tiny.engine._requests.values()):
        tiny.engine.abort(request.request_id)
    tiny.engine.step()
    assert_idle(tiny)


def test_sc_02_larger_priority_runs_first_ties_by_arrival() -> None:
    tiny = small(max_num_seqs=1)
    order: list[str] = []
    for name, priority in (("a", 0), ("b", 5), ("c", -1), ("d", 5)):
        tiny.add(ids(4), greedy(2, priority=priority), request_id=name)
    while tiny.engine.has_work:
        order += [request.request_id for request in tiny.engine.step() if request.finished]
    assert order == ["b", "d", "a", "c"]


# Metrics


def test_mt_01_hits_are_counted_once_per_request() -> None:
    tiny = small(num_gpu_blocks_override=20)
    outputs = tiny.generate([ids(20, salt=k) for k in range(12)], greedy(30))
    stats = tiny.engine.stats()
    assert stats.preemptions > 0
    assert stats.prefix_cache_queries == 20 * 12
    assert stats.prefix_cache_hits == 0
    assert [output.num_cached_tokens for output in outputs] == [0] * 12


def test_mt_01_a_repeat_counts_whole_blocks_and_sums_up() -> None:
    tiny = small(max_num_seqs=2)
    outputs = [*tiny.generate([ids(21)], greedy(2))]
    outputs += tiny.generate([ids(21), ids(20), ids(21)[:9]], greedy(2))
    cached = [output.num_cached_tokens for output in outputs]
    assert cached[:2] == [0, 20]
    assert tiny.engine.stats().prefix_cache_hits == sum(cached)
    assert tiny.engine.stats().prefix_cache_queries == 21 + 21 + 20 + 9


def test_mt_01_children_and_preemptions_and_steps_are_counted() -> None:
    tiny = small()
    tiny.generate([ids(10)], SamplingParams(n=3, seed=1, max_tokens=6, ignore_eos=True))
    stats = tiny.engine.stats()
    assert stats.cow_copies == 2
    assert stats.num_steps == len(stats.tokens_per_step)
    assert sum(stats.tokens_per_step) == 10 + 3 * 5


def test_mt_01_times_are_in_order() -> None:
    tiny = small(max_num_seqs=1)
    for output in tiny.generate([ids(9), ids(70)], greedy(5)):
        times = output.metrics
        names = ("arrival_time", "first_scheduled_time", "first_token_time", "finished_time")
        values = [times[name] for name in names]
        assert None not in values
        assert values == sorted(values)


# Determinism


LENGTHS = (3, 17, 40, 64, 129)


@cache
def solo(length: int) -> list[int]:
    return small().tokens(ids(length, salt=length), greedy(16))


def churn(tiny: Tiny) -> None:
    """Cancels and refills, so that pages are handed out in another order."""
    requests = [tiny.add(ids(20 + k, salt=70 + k), greedy(20)) for k in range(6)]
    for step in range(9):
        tiny.engine.step()
        if step % 2:
            tiny.engine.abort(requests[step // 2].request_id)
    tiny.run()


@pytest.mark.parametrize("options", [{}, {"num_gpu_blocks_override": 60}], ids=["ample", "tight"])
@pytest.mark.parametrize("seed", [0, 1])
def test_dn_01_greedy_tokens_do_not_depend_on_company(options: dict[str, Any], seed: int) -> None:
    for tiny, exact in ((small(**options), True), (bucketed(**options), False)):
        churn(tiny)
        order = np.random.default_rng(seed).permutation(LENGTHS).tolist()
        outputs = tiny.generate([ids(n, salt=n) for n in order], greedy(16))
        for length, output in zip(order, outputs):
            if exact:
                assert tokens(output) == solo(length)
            assert_dense(ids(length, salt=length), tokens(output))
        assert_idle(tiny)


def test_dn_01_deterministic_is_to_the_last_bit() -> None:
    """Log-probabilities, of prompts long enough that their keys are summed up in several pieces."""
    prompts = [ids(n, salt=n) for n in (129, 200, 70, 3, 300, 17)]
    tiny = small(max_num_batched_tokens=96, num_gpu_blocks_override=600)

    def found(chosen: list[list[int]]) -> list[list[float]]:
        tiny.engine.block_manager.reset_prefix_cache()
        outputs = [output.outputs[0] for output in tiny.generate(chosen, greedy(8, logprobs=0))]
        return [
            [entry[token].logprob for token, entry in zip(o.token_ids, o.logprobs or [])]
            for o in outputs
        ]

    together = found(prompts)
    assert found(prompts[::-1])[::-1] == together
    assert [found([prompt])[0] for prompt in prompts] == together
