"""Failure injection (DESIGN.md 4): a failed step ends its own requests, and the engine goes on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from paxkv.engine.request import Request
from paxkv.sampling.sampling_params import SamplingParams
from tests.engine.tiny import CONFIG, Tiny, greedy, ids, params
from tests.regressions.engines import assert_dense, assert_idle, bucketed, small, tokens


def fails_at(number: int, error: type[BaseException] = RuntimeError) -> Callable[[int], None]:
    done = []

    def hook(step: int) -> None:
        if step >= number and not done:
            done.append(step)
            raise error("planted")

    return hook


def start(tiny: Tiny, count: int = 4) -> list[Request]:
    return [tiny.add(ids(9 + k, salt=k), greedy(10)) for k in range(count)]


@pytest.mark.parametrize("hook", ["before_launch", "inside_step"])
@pytest.mark.parametrize("number", [0, 1, 4])
@pytest.mark.parametrize("options", [{}, {"layers_per_program": 2}], ids=["groups", "whole"])
def test_a_failed_step_ends_its_requests_only(hook: str, number: int, options: dict) -> None:
    tiny = small(**options)
    setattr(tiny.engine.runner.hooks, hook, fails_at(number))
    first = start(tiny)
    late = None
    while tiny.engine.has_work:
        tiny.engine.step()
        if late is None and any(request.error for request in first):
            late = tiny.add(ids(20, salt=50), greedy(8))
        tiny.engine.block_manager.check_invariants()
    assert late is not None
    assert late.error is None
    for request in first:
        assert "RuntimeError: planted" in (request.error or "")
        assert request.output().outputs[0].finish_reason == "error"
        assert_dense(request.prompt_token_ids, tokens(request.output()))
    assert_dense(ids(20, salt=50), tokens(late.output()))
    assert_idle(tiny)
    assert tiny.engine.runner.alive


def test_a_failure_that_shows_when_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of a device failure are not deleted, and raise whatever is done with them."""
    tiny = small()
    runner = tiny.engine.runner
    made, reset = [], runner.reset

    def noted() -> None:
        made.append("anew")
        reset()

    def fail() -> None:
        if not made:
            raise jax.errors.JaxRuntimeError("INTERNAL: planted")

    monkeypatch.setattr(runner, "reset", noted)
    monkeypatch.setattr(runner, "wait", fail)
    runner.hooks.before_launch = fails_at(2)
    requests = start(tiny)
    tiny.run()
    assert all(request.error for request in requests)
    assert made == ["anew"]
    (again,) = tiny.generate([ids(9)], greedy(5))
    assert_dense(ids(9), tokens(again))
    assert_idle(tiny)


@pytest.mark.parametrize("hook", ["before_launch", "inside_step"])
def test_requests_outside_the_failed_step_are_computed_again(hook: str) -> None:
    """A prompt the budget left no room for has pages, and keeps its right to an answer."""
    tiny = small(max_num_batched_tokens=64)
    first = tiny.add(ids(64, salt=1), greedy(6))
    second = tiny.add(ids(30, salt=2), greedy(6))
    tiny.engine.step()
    third = tiny.add(ids(100, salt=3), greedy(6, priority=3))
    tiny.engine.step()
    setattr(tiny.engine.runner.hooks, hook, fails_at(tiny.engine.runner.num_steps))
    tiny.run()
    errors = [request.error is not None for request in (first, second, third)]
    assert any(errors)
    for request in (first, second, third):
        if request.error is None:
            assert len(tokens(request.output())) == 6
        assert_dense(request.prompt_token_ids, tokens(request.output()))
    assert_idle(tiny)


def test_the_step_before_a_failed_one_is_not_lost() -> None:
    tiny = small()
    tiny.engine.runner.hooks.before_launch = fails_at(3)
    request = tiny.add(ids(9), greedy(10))
    tiny.run()
    assert len(tokens(request.output())) == 3
    assert_dense(ids(9), tokens(request.output()))


@pytest.mark.parametrize("hook", ["before_launch", "inside_step"])
def test_an_interrupt_comes_through_and_leaves_a_working_engine(hook: str) -> None:
    tiny = small()
    setattr(tiny.engine.runner.hooks, hook, fails_at(2, KeyboardInterrupt))
    start(tiny)
    with pytest.raises(KeyboardInterrupt):
        tiny.run()
    tiny.run()
    again = tiny.add(ids(15, salt=4), greedy(8))
    tiny.run()
    assert again.error is None
    assert_dense(ids(15, salt=4), tokens(again.output()))
    assert_idle(tiny)


@pytest.mark.parametrize("where", ["sample", "tokens"])
def test_a_draw_that_fails_or_cannot_be_read(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = small()
    start(tiny, 2)
    for _ in range(3):
        tiny.engine.step()
    with monkeypatch.context() as patch:
        target = (
            tiny.engine.runner if where == "sample" else tiny.engine._in_flight.results.__class__
        )

        def broken(*args: object) -> None:
            raise RuntimeError("planted")

        patch.setattr(target, where, broken)
        tiny.engine.step()
    tiny.run()
    again = tiny.add(ids(15, salt=4), greedy(8))
    tiny.run()
    assert again.error is None
    assert_dense(ids(15, salt=4), tokens(again.output()))
    assert_idle(tiny)


def test_an_unreadable_last_draw_ends_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is scheduled any more when it is read."""
    tiny = small()
    request = tiny.add(ids(9), greedy(1))
    tiny.engine.step()

    def broken(results: object) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(tiny.engine._in_flight.results.__class__, "tokens", broken)
        tiny.engine.step()
    assert "planted" in (request.error or "")
    assert_idle(tiny)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("position", [0, 1, 5])
def test_nan_logits_end_their_request_and_no_other(position: int, n: int) -> None:
    tiny = small()

    def poison(request_id: str, child: int, output: int) -> float | None:
        return math.nan if (request_id, child, output) == ("1", n - 1, position) else None

    tiny.engine.runner.hooks.logits = poison
    requests = [
        tiny.add(ids(9 + k, salt=k), greedy(10, n=n if k == 1 else 1), request_id=str(k))
        for k in range(3)
    ]
    tiny.run()
    assert "finite" in (requests[1].error or "")
    for child in requests[1].output().outputs:
        assert child.finish_reason == "error"
        # The elder children's tokens of the same step may have been committed before.
        assert len(child.token_ids) in (position, position + 1)
        assert_dense(requests[1].prompt_token_ids, child.token_ids)
    assert len(tokens(requests[1].output(), n - 1)) == position
    for request in (requests[0], requests[2]):
        assert request.error is None
        assert len(tokens(request.output())) == 10
        assert_dense(request.prompt_token_ids, tokens(request.output()))
    assert_idle(tiny)


def test_forced_ids_are_what_comes_out() -> None:
    tiny = small()
    wanted = [7, 0, 127, 64, 31, 32]
    tiny.engine.runner.hooks.logits = lambda request, child, output: wanted[output]
    assert tiny.tokens(ids(9), greedy(6)) == wanted
    assert tiny.tokens(ids(9), SamplingParams(temperature=1.5, max_tokens=6, ignore_eos=True)) == (
        wanted
    )


def test_a_request_with_nothing_left_to_draw_ends_alone() -> None:
    """bad_words and allowed_token_ids may meet only after some tokens."""
    tiny = small()
    request = tiny.request(ids(9), greedy(10, allowed_token_ids=[5]))
    request.allowed._longer.append(((5, 5), 5))
    tiny.engine.add(request)
    mate = tiny.add(ids(12, salt=1), greedy(10))
    tiny.run()
    assert tokens(request.output()) == [5, 5]
    assert "allowed" in (request.error or "")
    assert mate.error is None
    assert len(tokens(mate.output())) == 10
    assert_idle(tiny)


# One step ahead (DESIGN.md 7)


@pytest.mark.parametrize("position", [0, 1, 3, 6])
def test_a_token_drawn_past_the_stop_is_dropped(position: int) -> None:
    tiny = bucketed()
    plain = tiny.tokens(ids(9), greedy(8))
    forced = [*plain[:position], 2]

    def force(request_id: str, child: int, output: int) -> int | None:
        return forced[output] if request_id == "stops" and output < len(forced) else None

    tiny.engine.runner.hooks.logits = force
    stops = tiny.add(
        ids(9), SamplingParams(temperature=0, max_tokens=8, logprobs=1), request_id="stops"
    )
    mate = tiny.add(ids(9, salt=3), greedy(12))
    tiny.run()
    output = stops.output().outputs[0]
    assert output.token_ids == forced
    assert output.finish_reason == "stop"
    assert len(output.logprobs) == len(forced)
    assert_dense(ids(9, salt=3), tokens(mate.output()))
    assert_idle(tiny)


def test_a_surplus_token_preempts_nobody_and_stays_within_the_length() -> None:
    tiny = small(num_gpu_blocks_override=20, max_model_len=80)
    tiny.engine.runner.hooks.logits = lambda request, child, output: 2 if output == 4 else None
    requests = [
        tiny.add(ids(36, salt=k), SamplingParams(temperature=0, max_tokens=60)) for k in range(2)
    ]
    tiny.run()
    assert [request.output().outputs[0].finish_reason for request in requests] == ["stop"] * 2
    assert tiny.engine.stats().preemptions == 0
    tiny.engine.runner.hooks.logits = None
    full = tiny.generate([ids(75)], greedy(60))[0].outputs[0]
    assert (len(full.token_ids), full.finish_reason) == (5, "length")
    assert max(tiny.engine.stats().tokens_per_step) <= 64
    assert_idle(tiny)


@pytest.mark.parametrize("hook", ["before_launch", "inside_step"])
def test_the_device_knows_all_block_tables_after_a_failed_step(hook: str) -> None:
    """Rows keep stale pages; a child's row is patched only where it differs from those."""
    tiny = small()
    start(tiny)
    tiny.run()
    setattr(tiny.engine.runner.hooks, hook, fails_at(tiny.engine.runner.num_steps + 1))
    start(tiny)
    tiny.run()
    family = tiny.add(ids(15, salt=4), greedy(8, n=3))
    while tiny.engine.has_work:
        tiny.engine.step()
        if tiny.engine.scheduler.running:
            known = np.asarray(tiny.engine.runner._tables)[:-1]
            assert np.array_equal(known, tiny.engine.block_manager.tables)
    for child in family.output().outputs:
        assert_dense(ids(15, salt=4), child.token_ids)


def test_nan_in_one_sequence_reaches_no_other() -> None:
    """An activation that is not finite, as half precision makes them, in the middle of a step."""
    config = replace(CONFIG, tie_word_embeddings=False)
    weights = {**params(), "head": params()["embed"]}
    prompt = [5, 9, 13, 2, 8, 7]
    want = Tiny(config, weights).tokens(prompt, greedy(6))
    weights["embed"] = weights["embed"].at[50].set(jnp.nan)
    tiny = Tiny(config, weights)
    outputs = tiny.generate([prompt, [50] * 5, prompt], greedy(6))
    assert [o.outputs[0].finish_reason for o in outputs] == ["length", "error", "length"]
    assert outputs[0].outputs[0].token_ids == outputs[2].outputs[0].token_ids == want
