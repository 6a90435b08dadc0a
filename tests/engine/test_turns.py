"""One LLM under Ctrl-C, deadlines, threads and the garbage collector."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paxkv.engine.locking import EngineLock
from paxkv.engine.request import Request
from paxkv.llm import LLM
from tests.engine.tiny import CONFIG, Tiny, greedy, ids

PROMPTS = [ids(9, salt) for salt in range(6)]
PARAMS = greedy(20)


@pytest.fixture(autouse=True)
def interrupt_is_handled() -> Iterator[None]:
    """Processes that a shell starts in the background ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def wanted() -> list[list[int]]:
    return [output.outputs[0].token_ids for output in Tiny().generate(PROMPTS, PARAMS)]


@pytest.fixture
def llm() -> Iterator[LLM]:
    """Whatever a test does, nothing of it is left in the engine."""
    tiny = Tiny()
    made = LLM.__new__(LLM)
    made.model_config, made._tokenizer = CONFIG, None
    made.engine, made.input_processor = tiny.engine, tiny.input_processor
    made._lock = EngineLock(tiny.engine)
    yield made
    tiny.engine.block_manager.check_invariants()
    stats = made.stats()
    assert (stats.used_blocks, stats.free_blocks) == (0, stats.num_blocks)
    assert stats.running == stats.waiting == 0


def tokens(llm: LLM, prompts: list[list[int]] = PROMPTS) -> list[list[int]]:
    return [o.outputs[0].token_ids for o in llm.generate(list(prompts), PARAMS, use_tqdm=False)]


def after_calls(owner: Any, name: str, act: Callable[[], Any], count: int) -> None:
    """From now on, call number `count` of `owner.name` is followed by `act()`."""
    call, calls = getattr(owner, name), []

    def followed(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        calls.append(1)
        if len(calls) == count:
            act()
        return result

    setattr(owner, name, followed)


@pytest.mark.parametrize("name", ["allocate", "append_batch", "cache_blocks", "free"])
def test_ctrl_c_cuts_no_step_in_two(llm: LLM, wanted: list[list[int]], name: str) -> None:
    after_calls(llm.engine.block_manager, name, lambda: signal.raise_signal(signal.SIGINT), 2)
    with pytest.raises(KeyboardInterrupt):
        tokens(llm)
    assert not llm.engine.has_work
    assert tokens(llm) == wanted
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("name", ["take_patches", "cache_blocks"])
def test_a_deadline_by_signal_is_the_callers(
    llm: LLM, wanted: list[list[int]], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An ordinary exception, which inside a step would be taken for the step's own failure."""

    def late(number: int, frame: Any) -> None:
        raise TimeoutError("too late")

    before = signal.signal(signal.SIGALRM, late)
    others = llm.stream(PROMPTS[0], PARAMS)
    next(others)
    try:
        after_calls(llm.engine.block_manager, name, lambda: signal.raise_signal(signal.SIGALRM), 2)
        with pytest.raises(TimeoutError, match="too late"):
            tokens(llm)
        assert signal.getsignal(signal.SIGALRM) is late
    finally:
        signal.signal(signal.SIGALRM, before)
    assert "failed" not in caplog.text
    assert list(others)[-1].outputs[0].token_ids == wanted[0]
    assert tokens(llm) == wanted


def test_a_second_ctrl_c_does_not_wait(llm: LLM) -> None:
    reached = []

    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        reached.append("held")
        signal.raise_signal(signal.SIGINT)
        reached.append("not held")

    llm.engine.runner.hooks.before_launch = lambda step: twice() if step == 2 else None
    with pytest.raises(KeyboardInterrupt):
        tokens(llm)
    assert reached == ["held"]


def test_who_handles_ctrl_c_otherwise_still_does(llm: LLM, wanted: list[list[int]]) -> None:
    presses: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: presses.append(number))
    try:
        after_calls(
            llm.engine.block_manager, "allocate", lambda: signal.raise_signal(signal.SIGINT), 2
        )
        assert tokens(llm) == wanted
        assert presses == [signal.SIGINT]
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        after_calls(
            llm.engine.block_manager, "allocate", lambda: signal.raise_signal(signal.SIGINT), 1
        )
        assert tokens(llm) == wanted
    finally:
        signal.signal(signal.SIGINT, before)


def test_threads_share_an_llm(llm: LLM, wanted: list[list[int]]) -> None:
    found: dict[int, list[list[int]]] = {}

    def work(index: int) -> None:
        alone = [PROMPTS[index]]
        streamed = [out.outputs[0].token_ids for out in llm.stream(alone[0], PARAMS)]
        found[index] = [*tokens(llm, alone), *tokens(llm, alone), streamed[-1]]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {index: [tokens] * 3 for index, tokens in enumerate(wanted)}


def test_answers_are_read_within_a_turn(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside it another thread may be in the step that writes them."""
    output, depths = Request.output, []

    def noted(request: Request) -> Any:
        depths.append(llm._lock._depth)
        return output(request)

    monkeypatch.setattr(Request, "output", noted)
    tokens(llm)
    assert len(list(llm.stream(PROMPTS[0], PARAMS))) > 1
    assert len(depths) > len(PROMPTS) + 1
    assert all(depths)


def test_a_short_request_does_not_wait_for_another_threads_long_one(llm: LLM) -> None:
    started, ended = threading.Event(), []
    llm.engine.runner.hooks.before_launch = lambda step: started.set()

    def work(number: int) -> None:
        llm.generate([ids(9)], greedy(number), use_tqdm=False)
        ended.append(number)

    long = threading.Thread(target=work, args=(200,))
    long.start()
    started.wait()
    work(3)
    long.join()
    assert ended == [3, 200]


@pytest.mark.parametrize("step", [0, 3])
def test_a_stream_collected_inside_a_step_ends_after_it(
    llm: LLM, wanted: list[list[int]], step: int
) -> None:
    stream = llm.stream(ids(30, 7), greedy(100))
    next(stream)
    cycle: list[Any] = [stream]
    cycle.append(cycle)
    first = llm.engine.num_steps
    held = [cycle]
    del stream, cycle

    def collect(number: int) -> None:
        if held and number >= first + step:
            held.clear()
            gc.collect()

    llm.engine.runner.hooks.before_launch = collect
    assert tokens(llm) == wanted
    assert not held
    assert not llm.engine.has_work
