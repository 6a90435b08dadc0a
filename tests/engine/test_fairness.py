"""Nobody starves: properties of the scheduler alone, on random requests that overfill its memory.

Each property is also shown to fail for schedulers with a planted fault.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from paxkv.engine.config import ResolvedConfig
from paxkv.engine.scheduler.output import SchedulerOutput
from paxkv.engine.scheduler.policy import Order, rank
from paxkv.engine.scheduler.scheduler import Scheduler
from tests.engine.scheduler_driver import Asked, Driver, config

POLICIES = st.fixed_dictionaries(
    {
        "scheduler_delay_factor": st.sampled_from([0.0, 0.5, 3.0]),
        "max_num_partial_prefills": st.integers(1, 4),
        "max_long_partial_prefills": st.integers(1, 2),
        "long_prefill_token_threshold": st.integers(1, 12),
    }
).filter(lambda p: p["max_long_partial_prefills"] <= p["max_num_partial_prefills"])
BATCHES = st.sampled_from(
    [
        config(),
        config(max_num_batched_tokens=4),
        config(num_gpu_blocks=7, max_num_batched_tokens=16, max_num_seqs=8),
        config(enable_chunked_prefill=False, max_num_batched_tokens=24),
    ]
)


@st.composite
def workloads(
    sample: st.DrawFn, priorities: tuple[int, ...] = (0,), most: int = 9, last_step: int = 25
) -> list[Asked]:
    """Requests that come one by one; each alone fits into the memory."""
    asked = []
    for _ in range(sample(st.integers(2, most))):
        prompt = sample(st.integers(1, 20))
        asked.append(
            Asked(
                prompt=prompt,
                output=sample(st.integers(1, 24 - prompt)),
                step=sample(st.integers(0, last_step)),
                priority=sample(st.sampled_from(priorities)),
                n=sample(st.sampled_from([1, 1, 1, 2])),
            )
        )
    return asked


def run(
    asked: list[Asked],
    batch: ResolvedConfig,
    policy: dict[str, Any],
    ahead: bool,
    make: Callable[..., Scheduler],
) -> Driver:
    if not batch.enable_chunked_prefill:
        policy = policy | {"max_num_partial_prefills": 1, "max_long_partial_prefills": 1}
    most = batch.max_num_batched_tokens
    driver = Driver(replace(batch, **policy), ahead, make, mixed=(most // 4, most // 2, most))
    driver.run(asked, most_steps=2000)
    return driver


def nobody_is_passed_over(driver: Driver) -> None:
    """At one priority a row goes to the earliest of those that wait, preempted ones included."""
    scheduler: Any = driver.scheduler
    for got_row, still_waiting in scheduler.seen:
        for request in got_row:
            earlier = [
                other.arrival
                for other in still_waiting
                if other.sampling_params.priority == request.sampling_params.priority
                and other.arrival < request.arrival
            ]
            assert not earlier, f"{earlier} wait while {request.arrival} starts"


def the_first_in_line_advances(driver: Driver) -> None:
    """Of those that run, in every step; so with every step somebody's end comes nearer."""
    scheduler: Any = driver.scheduler
    for running, plan in scheduler.steps:
        assert running[0] in [advance.sequence for advance in plan.scheduled]


def everybody_ends_in_time(driver: Driver) -> None:
    """Within as many steps as there are tokens before a request in line, plus its own."""
    for mine in driver.told:
        before = [t.asked.tokens for t in driver.told if t.request.arrival < mine.request.arrival]
        assert mine.ended is not None
        assert mine.ended - mine.arrived <= sum(before) + mine.asked.tokens


def everybody_ends_in_time_with_ageing(driver: Driver) -> None:
    """The same, once no newcomer's priority makes up for its lateness any more."""
    aging = driver.config.priority_aging_steps
    assert aging is not None
    most = max(told.asked.priority for told in driver.told)
    for mine in driver.told:
        late = (most - mine.asked.priority + 1) * aging
        others = [t for t in driver.told if t is not mine and t.arrived <= mine.arrived + late]
        bound = late + sum(t.asked.tokens for t in others) + mine.asked.tokens
        assert mine.ended is not None
        assert mine.ended - mine.arrived <= bound


def watched(scheduler: type[Scheduler]) -> Callable[..., Scheduler]:
    """Makes schedulers that note steps: in `seen` who got a row and who still waits, in `steps`
    who ran before."""

    class Watched(scheduler):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.seen: list[Any] = []
            self.steps: list[Any] = []

        def schedule(self, uncommitted: bool) -> SchedulerOutput | None:
            running = [s for s in self.running if s.num_output < s.request.max_tokens]
            plan: SchedulerOutput | None = super().schedule(uncommitted)
            if plan is not None and running:
                self.steps.append((running, plan))
            if plan is not None and plan.started:
                waiting = [sequence.request for sequence in self.waiting]
                self.seen.append(([sequence.request for sequence in plan.started], waiting))
            return plan

    return Watched


def profile(examples: int, **changes: Any) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        **changes,
    )


@profile(50)
@given(workloads(priorities=(0, 0, 3)), BATCHES, POLICIES, st.booleans())
def test_no_later_arrival_is_admitted_while_an_earlier_one_waits(asked, batch, policy, ahead):
    nobody_is_passed_over(run(asked, batch, policy, ahead, watched(Scheduler)))


@profile(50)
@given(workloads(priorities=(0, 0, 3)), BATCHES, POLICIES, st.booleans())
def test_the_first_in_line_advances_in_every_step(asked, batch, policy, ahead):
    the_first_in_line_advances(run(asked, batch, policy, ahead, watched(Scheduler)))


@profile(60)
@given(workloads(), BATCHES, POLICIES, st.booleans())
def test_everybody_ends_in_time(asked, batch, policy, ahead):
    everybody_ends_in_time(run(asked, batch, policy, ahead, Scheduler))


STREAMS = workloads(priorities=(0, 1, 2, 2, 2), most=30, last_step=90)


@profile(40)
@given(STREAMS, BATCHES, POLICIES, st.integers(1, 6))
def test_with_ageing_everybody_ends_in_time_whatever_the_priorities(asked, batch, policy, steps):
    policy = policy | {"priority_aging_steps": steps}
    everybody_ends_in_time_with_ageing(run(asked, batch, policy, False, Scheduler))


@pytest.mark.parametrize("aging", [None, 10])
def test_under_a_stream_of_higher_priority_only_ageing_ends_the_wait(aging: int | None) -> None:
    stream = [Asked(4, 8, step=step, priority=1) for step in range(0, 600, 4)]
    low = Asked(4, 8, step=5)
    driver = Driver(config(max_num_seqs=2, num_gpu_blocks=6, priority_aging_steps=aging))
    told = next(t for t in driver.run([*stream, low]) if t.asked is low)
    assert told.ended is not None
    waited = told.ended - told.arrived
    assert waited < 60 if aging else waited > 600


# Planted faults


class SkipsTheHead(Scheduler):
    """Admits whoever fits when the first in line does not."""

    def _admit(self, plan, budget):  # type: ignore[no-untyped-def, override]
        super()._admit(plan, budget)
        if len(self.waiting) > 1 and not plan.started:
            first = self.waiting.pop(0)
            super()._admit(plan, budget)
            self.waiting.insert(0, first)


class QueuesAgain(Scheduler):
    """Puts a preempted sequence behind everybody."""

    def preempt(self, sequence):  # type: ignore[no-untyped-def]
        super().preempt(sequence)
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            sequence.request.rank = (1000, *sequence.request.rank)
            insort(self.waiting, sequence, key=rank)


class PreemptsTheFirst(Scheduler):
    """Takes the pages of the sequence that has come furthest."""

    def _make_room(self):  # type: ignore[no-untyped-def]
        if len(self.running) > 1:
            self.preempt(self.running[0])
        else:
            super()._make_room()


class LetsPromptsStall(Scheduler):
    """Prompts get the pages that decoding leaves, if any."""

    def schedule(self, uncommitted):  # type: ignore[no-untyped-def]
        needed = self._memory.blocks_needed
        self._memory.blocks_needed = lambda rows: needed(  # type: ignore[method-assign, misc]
            [s.row for s in self.running if s.row in rows and s.num_remaining == 1]
        )
        try:
            return super().schedule(uncommitted)
        finally:
            self._memory.blocks_needed = needed  # type: ignore[method-assign]


class LastComeFirst(Scheduler):
    """A stack, not a line."""

    def add(self, request):  # type: ignore[no-untyped-def]
        request.arrival, arrival = -request.arrival, request.arrival
        super().add(request)
        request.arrival = arrival


class NeverAges(Scheduler):
    """Knows priorities and no ageing."""

    def __init__(self, config, memory, *args, **kwargs):  # type: ignore[no-untyped-def]
        super().__init__(config, memory, *args, **kwargs)
        self._order = Order(replace(config, priority_aging_steps=None))


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (SkipsTheHead, nobody_is_passed_over),
        (QueuesAgain, nobody_is_passed_over),
        (LastComeFirst, nobody_is_passed_over),
        (PreemptsTheFirst, everybody_ends_in_time),
        (PreemptsTheFirst, the_first_in_line_advances),
        (LetsPromptsStall, the_first_in_line_advances),
        (LastComeFirst, everybody_ends_in_time),
        (NeverAges, everybody_ends_in_time_with_ageing),
    ],
    ids=lambda each: each.__name__,
)
def test_a_planted_fault_is_caught(fault: type[Scheduler], check: Callable[[Driver], None]) -> None:
    aging = check is everybody_ends_in_time_with_ageing

    @profile(200, phases=[Phase.generate], report_multiple_bugs=False)
    @given(STREAMS if aging else workloads(), BATCHES)
    def fails(asked: list[Asked], batch: ResolvedConfig) -> None:
        policy = {"priority_aging_steps": 2 if aging else None, "max_num_partial_prefills": 3}
        check(run(asked, batch, policy, False, watched(fault)))

    with pytest.raises(AssertionError):
        fails()
