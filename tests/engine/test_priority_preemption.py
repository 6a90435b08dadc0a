"""priority_preemption: the urgent take the places of others at once, and nobody is moved to and
fro. The scheduler alone, and the whole engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from paxkv.engine.config import EngineConfig, ResolvedConfig
from paxkv.engine.scheduler import scheduler as scheduler_module
from paxkv.engine.scheduler.queues import displaced_by
from paxkv.engine.scheduler.scheduler import Scheduler
from paxkv.engine.sequence import Sequence
from tests.engine.beam_cases import beam_engine, beams
from tests.engine.scheduler_driver import Asked, Driver, config
from tests.engine.tiny import CONFIG, Tiny, greedy, ids
from tests.regressions.engines import assert_idle

ON = {"priority_preemption": True}
SLOTS = config(max_num_seqs=2, num_gpu_blocks=20)
PAGES = config(max_num_seqs=4, num_gpu_blocks=5)


class Noting(Scheduler):
    """Notes each displacement: who, with how many tokens, and for whom."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.noted: list[tuple[Sequence, int]] = []

    def _displace(self, sequence: Sequence) -> None:
        assert sequence.request.rank == max(
            s.request.rank for s in self.running if s.displaced_at < len(s.token_ids)
        ), "another was of lower rank"
        self.noted.append((sequence, len(sequence.token_ids)))
        super()._displace(sequence)


def run(
    asked: list[Asked], batch: ResolvedConfig, policy: dict[str, Any] = ON, ahead: bool = False
) -> Driver:
    driver = Driver(replace(batch, **policy), ahead, Noting)
    driver.run(asked, most_steps=3000)
    return driver


def waited(driver: Driver, asked: Asked) -> int:
    told = next(told for told in driver.told if told.asked is asked)
    assert told.admitted is not None
    return told.admitted - told.arrived


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("batch, prompt", [(SLOTS, 3), (PAGES, 8)], ids=["slots", "pages"])
def test_an_urgent_request_starts_at_once(batch: ResolvedConfig, prompt: int, ahead: bool) -> None:
    """Without the option it waits until one of the running answers has ended."""
    asked = [Asked(4, 16), Asked(4, 16)]
    urgent = Asked(prompt, 4, step=4, priority=1)
    assert waited(run([*asked, urgent], batch, {}, ahead), urgent) > 8
    driver = run([*asked, urgent], batch, ON, ahead)
    assert waited(driver, urgent) <= 2
    assert driver.scheduler.noted[0][0].request.arrival == 1
    assert driver.told[2].request.num_preemptions == 0


def test_equal_priority_displaces_nobody() -> None:
    driver = run([Asked(4, 16), Asked(4, 16), Asked(4, 4, step=4)], SLOTS)
    assert not driver.scheduler.noted
    assert [told.request.num_preemptions for told in driver.told] == [0, 0, 0]


def test_nobody_is_displaced_in_vain() -> None:
    """A place that even all lower ones together could not make stays unmade."""
    asked = [Asked(4, 16, priority=1), Asked(3, 16), Asked(14, 4, step=4, priority=1)]
    driver = run(asked, replace(PAGES, num_gpu_blocks=6))
    assert not driver.scheduler.noted


def test_the_lowest_and_no_more_than_needed_make_way() -> None:
    asked = [Asked(4, 16, priority=p) for p in (2, 0, 1)]
    driver = run([*asked, Asked(3, 4, step=4, priority=3)], replace(SLOTS, max_num_seqs=3))
    assert [s.request.sampling_params.priority for s, _ in driver.scheduler.noted] == [0]


def test_one_that_ageing_has_brought_forward_is_left_in_peace() -> None:
    old = Asked(4, 18)
    urgent = Asked(3, 4, step=10, priority=1)
    batch = replace(SLOTS, max_num_seqs=1)
    assert len(run([old, urgent], batch).scheduler.noted) == 1
    assert not run([old, urgent], batch, ON | {"priority_aging_steps": 2}).scheduler.noted


# No thrash

PRIORITIES = st.sampled_from([0, 0, 1, 2])


@st.composite
def streams(sample: st.DrawFn) -> list[Asked]:
    """Requests of all priorities that keep coming; each alone fits into the memory."""
    asked = []
    for _ in range(sample(st.integers(2, 16))):
        prompt = sample(st.integers(1, 16))
        output = sample(st.integers(1, 24 - prompt))
        step, priority = sample(st.integers(0, 50)), sample(PRIORITIES)
        asked.append(Asked(prompt, output, step, priority, sample(st.sampled_from([1, 1, 2]))))
    return asked


BATCHES = st.sampled_from(
    [
        config(),
        config(max_num_seqs=2, num_gpu_blocks=20, max_num_batched_tokens=4),
        config(
            num_gpu_blocks=7, max_num_batched_tokens=16, max_num_seqs=8, enable_prefix_caching=True
        ),
        config(enable_chunked_prefill=False, max_num_batched_tokens=24, max_num_seqs=3),
    ]
)


def profile(examples: int, **changes: Any) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        **changes,
    )


def every_displacement_costs_a_token(driver: Driver) -> None:
    """Never twice in a row for the same victim without progress."""
    at: dict[Sequence, int] = {}
    for sequence, tokens in driver.scheduler.noted:  # type: ignore[attr-defined]
        assert tokens > at.get(sequence, -1), "displaced twice without a token in between"
        at[sequence] = tokens


@profile(120)
@given(streams(), BATCHES, st.sampled_from([None, 3]), st.booleans())
def test_nobody_is_moved_to_and_fro_and_all_end(asked, batch, aging, ahead):
    driver = run(asked, batch, ON | {"priority_aging_steps": aging}, ahead)
    every_displacement_costs_a_token(driver)
    assert all(told.ended is not None for told in driver.told)


@profile(60)
@given(streams(), BATCHES, st.booleans())
def test_of_the_highest_priority_nobody_is_displaced(asked, batch, ahead):
    driver = run(asked, batch, ON, ahead)
    highest = max(each.priority for each in asked)
    assert all(s.request.sampling_params.priority < highest for s, _ in driver.scheduler.noted)


@profile(60)
@given(streams(), BATCHES, st.booleans())
def test_off_it_changes_nothing(asked, batch, ahead):
    assert not run(asked, batch, {}, ahead).scheduler.noted


def test_a_scheduler_that_forgets_progress_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(first: Sequence, *rest: Any) -> list[Sequence]:
        for sequence in rest[2]:
            sequence.displaced_at = -1
        return displaced_by(first, *rest)

    monkeypatch.setattr(scheduler_module, "displaced_by", forgetful)

    @profile(200, phases=[Phase.generate], report_multiple_bugs=False)
    @given(streams(), BATCHES)
    def fails(asked: list[Asked], batch: ResolvedConfig) -> None:
        every_displacement_costs_a_token(run(asked, batch))

    with pytest.raises(AssertionError, match="without a token"):
        fails()


# In the engine


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_the_displaced_answer_as_if_nothing_had_happened(mode: str) -> None:
    tiny = Tiny(
        deterministic=True,
        priority_preemption=True,
        num_cpu_blocks_override=40 if mode == "swap" else None,
        preemption_mode=mode,
    )
    slots = tiny.engine.config.max_num_seqs
    prompts = [ids(3 * k + 4, salt=k) for k in range(slots)]
    wanted = [output.outputs[0].token_ids for output in tiny.generate(prompts, greedy(24))]
    requests = [tiny.add(prompt, greedy(24)) for prompt in prompts]
    while any(request.first_token is None for request in requests):
        tiny.engine.step()
    urgent = [tiny.add(prompt, greedy(24, priority=5)) for prompt in prompts[:2]]
    for _ in range(4):
        tiny.engine.step()
    assert all(request.first_scheduled is not None for request in urgent)
    tiny.run()
    assert [r.output().outputs[0].token_ids for r in requests + urgent] == wanted + wanted[:2]
    assert [request.num_preemptions for request in requests] == [0] * (slots - 2) + [1, 1]
    assert tiny.engine.stats().preemptions_swapped == (2 if mode == "swap" else 0)
    assert_idle(tiny)


def test_beams_make_way_together() -> None:
    engine = beam_engine(priority_preemption=True)
    params = [beams(width, 20, ignore_eos=True) for width in (8, 7, 6)]
    prompts = [ids(9, salt=k) for k in range(3)]
    alone = engine.generate(prompts, params)
    searches = [engine.add(*each) for each in zip(prompts, params)]
    while engine.engine.stats().running < engine.engine.config.max_num_seqs:
        engine.engine.step()
    urgent = [engine.add(ids(5, salt=k), greedy(6, priority=1)) for k in range(2)]
    for _ in range(4):
        engine.engine.step()
    assert all(request.first_scheduled is not None for request in urgent)
    engine.run()
    assert [search.num_preemptions for search in searches] == [0, 0, 1]
    for search, expected in zip(searches, alone):
        found = search.output().outputs
        assert [beam.token_ids for beam in found] == [b.token_ids for b in expected.outputs]
    assert_idle(engine)


def test_beams_come_back_together() -> None:
    """Kind: part of a search is back and waits for a slot, another waits for more slots than the
    rest leaves: neither went on, and the search was cut as if memory were out."""
    engine = beam_engine(priority_preemption=True)
    slots = engine.engine.config.max_num_seqs
    params = beams(slots, 12, ignore_eos=True)
    (alone,) = engine.generate([ids(9)], params)
    search = engine.add(ids(9), params)
    while engine.engine.stats().running < slots:
        engine.engine.step()
    urgent = engine.add(ids(5), greedy(8, priority=1))
    while urgent.first_scheduled is None:
        engine.engine.step()
    pair = engine.add(ids(6), greedy(4, n=2, priority=2))
    engine.run()
    assert search.num_preemptions == 1
    assert pair.first_scheduled is not None
    found = search.output().outputs
    assert [beam.token_ids for beam in found] == [beam.token_ids for beam in alone.outputs]
    assert_idle(engine)


def test_reservations_that_are_kept_to_the_end_contradict_it() -> None:
    with pytest.raises(ValueError, match="priority_preemption=True needs allocation='paged'"):
        EngineConfig(priority_preemption=True, allocation="contiguous").resolve(CONFIG)
    with pytest.raises(ValueError, match="priority_preemption='yes' must be True or False"):
        EngineConfig(priority_preemption="yes")  # type: ignore[arg-type]
