"""Bug bank, preemption by swap to host memory."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from paxkv.engine.config import EngineConfig
from paxkv.engine.request import Request
from paxkv.engine.scheduler.queues import Preemption
from paxkv.memory import BlockManager, Transfers
from paxkv.outputs import RequestOutput
from paxkv.sampling.sampling_params import SamplingParams
from tests.engine.tiny import Tiny, greedy, ids
from tests.regressions.engines import assert_dense, assert_idle, small, tokens
from tests.regressions.test_failures import fails_at
from tests.regressions.test_preemption import PROMPTS, SMALL_POOL, assert_same


def tight(host_blocks: int = 80, **options: Any) -> Tiny:
    return small(
        **{
            "num_gpu_blocks_override": SMALL_POOL,
            "num_cpu_blocks_override": host_blocks,
            "preemption_mode": "swap",
            **options,
        }
    )


FAMILIES = [ids(30, salt=k) for k in range(6)]
FAMILY = SamplingParams(n=4, seed=3, max_tokens=20, ignore_eos=True)


@cache
def ample_families() -> list[RequestOutput]:
    return small().generate(FAMILIES, FAMILY)


@pytest.mark.parametrize("host_blocks", [0, 1, 6, 80])
def test_ps_03_swap_space_of_any_size_changes_no_answer(host_blocks: int) -> None:
    tiny = tight(host_blocks)
    for want, found in zip(ample_families(), tiny.generate(FAMILIES, FAMILY)):
        assert_same(want, found)
    stats = tiny.engine.stats()
    assert stats.preemptions > 0
    assert stats.cpu_free_blocks == stats.num_cpu_blocks == host_blocks
    if host_blocks == 80:
        assert stats.preemptions_swapped == stats.preemptions
        assert stats.swap_bytes_in > 0
    else:
        assert stats.preemptions_swapped < stats.preemptions, "nobody was computed again"
    assert_idle(tiny)


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"frequency_penalty": 0.7, "presence_penalty": 0.4, "repetition_penalty": 1.2},
        {"min_tokens": 28, "ignore_eos": False},
        {"temperature": 0.9, "seed": 5},
        {"temperature": 0.9, "n": 2, "seed": 3, "frequency_penalty": 0.9},
        {"prompt_logprobs": 2},
        {"enable_prefix_caching": False},
    ],
    ids=lambda extra: ", ".join(extra) or "greedy",
)
def test_ps_02_swapping_is_invisible(extra: dict[str, Any]) -> None:
    """Counts for penalties, prompt boundary and random numbers survive as well."""
    params = SamplingParams(
        **({"temperature": 0, "max_tokens": 30, "ignore_eos": True, "logprobs": 1} | extra)
    )
    tiny = tight()
    for want, found in zip(small().generate(PROMPTS, params), tiny.generate(PROMPTS, params)):
        assert_same(want, found)
    stats = tiny.engine.stats()
    assert stats.preemptions_swapped == stats.preemptions > 0
    assert_idle(tiny)


def test_ps_02_a_prompt_swapped_half_way_is_finished() -> None:
    """A prompt in chunks, its scores too, and children that are yet to come."""
    params = greedy(12, n=2, prompt_logprobs=1)
    prompts = [ids(50, salt=k) for k in range(4)]
    tiny = tight()
    answers = [tiny.add(prompt, params) for prompt in prompts]
    partly = False
    while tiny.engine.has_work:
        tiny.engine.step()
        partly |= any(0 < s.num_computed < 50 for s in tiny.engine.scheduler.swapped)
    assert partly, "nobody was swapped within its prompt"
    for want, found in zip(small().generate(prompts, params), answers):
        assert_same(want, found.output())
    assert_idle(tiny)


def watch_pages(tiny: Tiny) -> list[int]:
    """Assert that what comes back is what left, bit for bit; the list counts the pages."""
    runner, left, back = tiny.engine.runner, {}, []
    launch = runner.swapper.launch

    def content(pages: Any, page: int) -> bytes:
        return b"".join(np.asarray(array)[page].tobytes() for pair in pages for array in pair)

    def watched(pages: Any, transfers: Transfers) -> None:
        for device, host in zip(transfers.out_devices.tolist(), transfers.out_hosts.tolist()):
            left[host] = content(pages, device)
        launch(pages, transfers)
        for host, device in zip(transfers.in_hosts.tolist(), transfers.in_devices.tolist()):
            assert content(pages, device) == left[host]
            back.append(device)

    runner.swapper.launch = watched  # type: ignore[method-assign]
    return back


def test_ps_03_pages_come_back_bit_for_bit() -> None:
    tiny = tight(enable_prefix_caching=False)
    back = watch_pages(tiny)
    outputs = tiny.generate(PROMPTS, greedy(30))
    assert len(back) > 10
    for output in outputs:
        assert_dense(output.prompt_token_ids, tokens(output))
    assert_idle(tiny)


def swap_one(tiny: Tiny) -> tuple[list[Request], Request]:
    """Run requests until one of them is in host memory."""
    requests = [tiny.add(prompt, greedy(30)) for prompt in PROMPTS]
    while not tiny.engine.scheduler.swapped:
        tiny.engine.step()
    return requests, tiny.engine.scheduler.swapped[0].request


def test_ps_03_shared_blocks_move_once_and_stay_shared() -> None:
    tiny = tight(enable_prefix_caching=False)
    back = watch_pages(tiny)
    first = tiny.add(ids(33, salt=1), greedy(30))
    tiny.engine.step()
    family = tiny.add(ids(24), greedy(30, n=4))
    seen = 0
    while tiny.engine.has_work:
        tiny.engine.step()
        away = [s.swapped for s in family.sequences if s.swapped is not None]
        if len(away) > 1:
            shared = set(away[0].pages.tolist()) & set(away[1].pages.tolist())
            assert len(shared) == 6, "the prompt's six blocks are stored once"
            seen += 1
    assert seen
    assert len(back) == tiny.engine.stats().swap_bytes_in / tiny.engine.runner.page_bytes
    for child in family.output().outputs:
        assert_dense(ids(24), child.token_ids)
    assert_dense(ids(33, salt=1), tokens(first.output()))
    assert_idle(tiny)


def test_ps_03_abort_of_a_swapped_request() -> None:
    tiny = tight()
    requests, away = swap_one(tiny)
    before = tiny.engine.stats()
    assert before.swapped == len(tiny.engine.scheduler.swapped) > 0
    assert before.swapped + before.running + before.waiting == len(requests)
    tiny.engine.abort(away.request_id)
    assert tiny.engine.stats().swapped == before.swapped - 1
    assert away.output().outputs[0].finish_reason == "abort"
    tiny.run()
    for request in requests:
        if request is not away:
            assert_dense(request.prompt_token_ids, tokens(request.output()))
    assert_idle(tiny)


def test_ps_03_abort_of_everything_while_pages_leave() -> None:
    """Copies that nobody wants any more must land before their pages are given out again."""
    tiny = tight()
    requests, _ = swap_one(tiny)
    assert tiny.engine.runner.swapper.num_landing
    for request in requests:
        tiny.engine.abort(request.request_id)
    assert not tiny.engine.has_work
    tiny.engine.step()
    assert_idle(tiny)


@pytest.mark.parametrize("hook", ["before_launch", "inside_step"])
def test_ps_03_a_failed_step_empties_swap_space_and_fails_no_swapped_request(hook: str) -> None:
    tiny = tight()
    requests, away = swap_one(tiny)
    setattr(tiny.engine.runner.hooks, hook, fails_at(tiny.engine.runner.num_steps))
    tiny.engine.step()
    assert tiny.engine.stats().swapped == tiny.engine.stats().cpu_used_blocks == 0
    tiny.run()
    assert any(request.error for request in requests)
    assert away.error is None
    for request in requests:
        assert_dense(request.prompt_token_ids, tokens(request.output()))
    assert len(tokens(away.output())) == 30
    assert_idle(tiny)


def test_ps_03_a_copy_that_cannot_be_read_fails_the_step_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny = tight()
    _, away = swap_one(tiny)

    def broken(count: int) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(tiny.engine.runner.swapper, "land", broken)
        tiny.engine.step()
    tiny.run()
    assert away.error is None
    assert_dense(away.prompt_token_ids, tokens(away.output()))
    assert_idle(tiny)


def test_ps_03_a_failure_after_pages_were_written_restarts_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny = tight()
    _, away = swap_one(tiny)
    swapper = tiny.engine.runner.swapper
    launch = swapper.launch

    def broken(pages: Any, transfers: Transfers) -> None:
        launch(list(pages), transfers)
        if len(transfers.in_devices):
            monkeypatch.undo()
            raise RuntimeError("planted")

    monkeypatch.setattr(swapper, "launch", broken)
    tiny.run()
    assert swapper.launch != broken, "nobody came back"
    assert "planted" in (away.error or "")
    assert_dense(away.prompt_token_ids, tokens(away.output()))
    again = tiny.add(ids(15, salt=4), greedy(8))
    tiny.run()
    assert_dense(ids(15, salt=4), tokens(again.output()))
    assert_idle(tiny)


def test_ps_03_reset_of_the_prefix_cache_while_somebody_is_swapped() -> None:
    tiny = tight()
    requests, _ = swap_one(tiny)
    tiny.engine.block_manager.reset_prefix_cache()
    tiny.run()
    for request in requests:
        assert_dense(request.prompt_token_ids, tokens(request.output()))
    assert_idle(tiny)


def test_ps_03_who_was_swapped_resumes_before_later_arrivals() -> None:
    tiny = tight()
    _, away = swap_one(tiny)
    later = [tiny.add(ids(8, salt=70 + k), greedy(2)) for k in range(3)]
    while away.sequences[0].swapped is not None:
        tiny.engine.step()
        assert all(request.first_scheduled is None for request in later)
    tiny.run()
    assert_idle(tiny)


@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_ps_03_the_last_token_is_never_awaited_in_host_memory(max_tokens: int) -> None:
    """A sequence with all its tokens ends; it is not swapped to be found complete later."""
    tiny = tight()
    requests = [tiny.add(ids(18, salt=k), greedy(max_tokens)) for k in range(4)]
    while tiny.engine.has_work:
        tiny.engine.step()
        for sequence in tiny.engine.scheduler.swapped:
            assert not sequence.in_flight
            assert sequence.finish is None
            assert sequence.num_output < max_tokens
    for request in requests:
        assert len(tokens(request.output())) == max_tokens
        assert_dense(request.prompt_token_ids, tokens(request.output()))
    assert_idle(tiny)


@pytest.mark.parametrize("mode", ["swap", "recompute", "auto"])
def test_modes(mode: str) -> None:
    tiny = tight(preemption_mode=mode)
    chosen = tiny.engine.scheduler.queues.preemption
    assert (chosen.mode == mode) or mode == "recompute"
    if mode == "auto":
        assert chosen.seconds_per_page > 0
        assert chosen.seconds_per_token > 0
    tiny.generate(PROMPTS, greedy(30))
    stats = tiny.engine.stats()
    assert stats.preemptions > 0
    assert (stats.num_cpu_blocks == 0) == (mode == "recompute")
    assert (stats.preemptions_swapped == 0) or mode != "recompute"
    assert_idle(tiny)


@pytest.mark.parametrize("page, token, swaps", [(1.0, 1.0, True), (1.0, 0.1, False)])
def test_auto_takes_what_costs_less(page: float, token: float, swaps: bool) -> None:
    """Seven pages of four tokens, there and back, against 26 tokens."""
    tiny = tight()
    tiny.engine.scheduler.queues.preemption = Preemption("auto", page, token)
    tiny.generate(PROMPTS, greedy(30))
    assert (tiny.engine.stats().preemptions_swapped > 0) == swaps


def test_auto_weighs_all_beams_of_a_search() -> None:
    """Two pages of the prompt are carried or computed for all of them, four tails for each."""
    memory = BlockManager(20, 4, num_host_blocks=20)
    allocation = memory.allocate(ids(10), cache_blocks=False)
    assert allocation is not None
    children = memory.fork(allocation.row, 3)
    assert children is not None
    rows = [allocation.row, *children.tolist()]
    memory.append_batch(rows)
    assert memory.swap.cost(rows) == (6 + 6, 8 + 4 * 3)
    assert Preemption("auto", 1.0, 0.5).swaps(memory, rows[:1])
    assert not Preemption("auto", 1.0, 0.5).swaps(memory, rows)
    assert Preemption("auto", 1.0, 0.7).swaps(memory, rows)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"swap_space": -1}, "swap_space=-1"),
        ({"swap_space": float("nan")}, "swap_space=nan"),
        ({"swap_space": True}, "swap_space=True"),
        ({"num_cpu_blocks_override": -1}, "num_cpu_blocks_override=-1"),
        ({"num_cpu_blocks_override": 1.5}, "num_cpu_blocks_override=1.5"),
        ({"preemption_mode": "drop"}, "preemption_mode='drop'.*recompute, swap, auto"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineConfig(**options)


def test_swap_space_is_counted_in_gib() -> None:
    page = small().engine.runner.page_bytes
    assert small(swap_space=10.5 * page / 2**30).engine.stats().num_cpu_blocks == 10
    assert small().engine.stats().num_cpu_blocks == 0
    with pytest.raises(ValueError, match=r"swap_space=1e-09 GiB holds no block"):
        small(swap_space=1e-9)
    with pytest.raises(ValueError, match=r"swap_space=10000000.*this machine has"):
        small(swap_space=10_000_000)
