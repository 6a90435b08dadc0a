"""What each scheduling option does, on the scheduler alone with a clock that tests set."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paxkv.engine.config import EngineConfig
from paxkv.engine.scheduler.policy import PromptBudget, PromptDelay
from tests.engine.scheduler_driver import Asked, Driver, config
from tests.engine.tiny import CONFIG, Tiny, greedy, ids

MODEL = replace(CONFIG, max_position_embeddings=2048)
AMPLE = config(
    max_model_len=400, num_gpu_blocks=1000, max_num_seqs=16, max_num_batched_tokens=64, block_size=4
)


def first_tokens(driver: Driver) -> dict[int, int]:
    """The step in which each request's first token is sampled, from 1."""
    found: dict[int, int] = {}
    for step, schedule in enumerate(driver.schedules, start=1):
        for sample in schedule.sample_slots:
            found.setdefault(sample.sequence.request.arrival, step)
    return found


# scheduler_delay_factor


@pytest.mark.parametrize(("factor", "expected"), [(0.0, 2), (0.5, 4), (2.0, 7), (4.0, 11)])
def test_prompts_wait_a_multiple_of_the_last_prompts_latency(factor: float, expected: int) -> None:
    """Step 1 has a prompt and takes 2 s, the others take 1 s; the second request comes at 2 s, and
    is admitted in the first step k, scheduled at k seconds, at which it has waited longer."""
    driver = Driver(
        replace(AMPLE, scheduler_delay_factor=factor), step_seconds=lambda n: 2.0 if n > 1 else 1
    )
    driver.run([Asked(10, 30), Asked(10, 5, step=1)])
    assert driver.told[1].admitted == expected


def test_prompts_that_wait_start_together() -> None:
    driver = Driver(replace(AMPLE, scheduler_delay_factor=3.0))
    driver.run([Asked(10, 30), *(Asked(10, 5, step=step) for step in (1, 2, 3, 4))])
    assert {told.admitted for told in driver.told[1:]} == {6}


def test_nobody_waits_for_nothing() -> None:
    """With no sequence running there is nothing that a prompt could delay."""
    driver = Driver(replace(AMPLE, scheduler_delay_factor=1e6))
    driver.run([Asked(10, 3), Asked(10, 3, step=1), Asked(10, 3, step=50)])
    assert [told.admitted for told in driver.told] == [1, 4, 7]


def test_latency_is_that_of_the_step_alone_when_steps_overlap() -> None:
    now = 0.0
    delay = PromptDelay(1.0, lambda: now)
    now = 5.0
    delay.ended(start=0.0, had_prompt=True)
    assert delay.latency == 5.0
    now = 7.0  # scheduled at 1 s, but the device was busy until 5 s
    delay.ended(start=1.0, had_prompt=True)
    assert delay.latency == 2.0
    now = 9.0
    delay.ended(start=8.0, had_prompt=False)
    assert delay.latency == 2.0


# max_num_partial_prefills


def test_one_long_prompt_stalls_those_behind_it_or_shares() -> None:
    asked = [Asked(300, 2), *(Asked(12, 2) for _ in range(4))]
    alone, shared = Driver(AMPLE), Driver(replace(AMPLE, max_num_partial_prefills=2))
    alone.run(asked)
    shared.run(asked)
    assert first_tokens(alone) == {0: 5, 1: 5, 2: 6, 3: 6, 4: 6}
    assert first_tokens(shared) == {0: 6, 1: 1, 2: 1, 3: 2, 4: 2}
    for driver in (alone, shared):
        assert max(s.num_tokens for s in driver.schedules) == 64


def test_a_long_prompt_alone_has_the_whole_budget() -> None:
    driver = Driver(replace(AMPLE, max_num_partial_prefills=4))
    driver.run([Asked(300, 1)])
    assert [s.num_tokens for s in driver.schedules] == [64, 64, 64, 64, 44]


def test_long_prompts_do_not_take_all_shares() -> None:
    """The second long one keeps its place with a token a step; short ones behind it go on."""
    asked = [Asked(300, 2), Asked(300, 2), *(Asked(12, 2) for _ in range(4))]
    policy = {"max_num_partial_prefills": 2, "long_prefill_token_threshold": 40}
    one, two = (
        Driver(replace(AMPLE, **policy, max_long_partial_prefills=n))  # type: ignore[arg-type]
        for n in (1, 2)
    )
    one.run(asked)
    two.run(asked)
    assert max(first_tokens(one)[k] for k in (2, 3, 4, 5)) <= 3
    assert min(first_tokens(two)[k] for k in (2, 3, 4, 5)) >= 8
    started = [sequence.request.arrival for s in one.schedules for sequence in s.started]
    assert started == sorted(started)


def test_shares_are_equal_and_none_is_lost() -> None:
    budget = PromptBudget(config(max_num_partial_prefills=3), 64)
    given = []
    for remaining in (100, 5, 100, 100):
        count = min(remaining, budget.share(remaining))
        budget.take(remaining, count)
        given.append(count)
    assert given == [22, 5, 19, 18]
    assert budget.spent
    assert budget.share(1) == 0


# length_aware


def test_among_as_many_arrivals_as_run_the_shorter_start_first() -> None:
    batch = config(max_num_seqs=4, max_model_len=400, num_gpu_blocks=1000)
    sizes = [200, 5, 100, 9, 3, 90]
    driver = Driver(replace(batch, length_aware=True))
    driver.run([Asked(1, size) for size in sizes])
    started = [number for _, number in driver.admissions]
    # 5 and 9 (with their prompt below 8 and 16) before 100 and 200; the next four come later.
    assert started == [1, 3, 2, 0, 4, 5]


def test_lengths_of_one_size_and_unknown_lengths_keep_their_order() -> None:
    batch = config(max_num_seqs=4, max_model_len=400, num_gpu_blocks=1000)
    for asked in (
        [Asked(1, size) for size in (60, 50, 40, 55)],
        [Asked(1, size, max_tokens=399) for size in (60, 5, 40, 5)],
    ):
        driver = Driver(replace(batch, length_aware=True))
        driver.run(asked)
        assert [number for _, number in driver.admissions] == [0, 1, 2, 3]


def test_priority_stands_above_length() -> None:
    driver = Driver(config(max_num_seqs=4, length_aware=True))
    driver.run([Asked(1, 2), Asked(10, 12, priority=1)])
    assert [number for _, number in driver.admissions] == [1, 0]


# priority_aging_steps


@pytest.mark.parametrize(("aging", "order"), [(None, [1, 0]), (100, [1, 0]), (10, [0, 1])])
def test_a_level_of_priority_is_worth_so_many_steps(aging: int | None, order: list[int]) -> None:
    """One row is busy for 40 steps; of two that wait the later one has more priority."""
    driver = Driver(
        config(max_num_seqs=1, max_model_len=60, num_gpu_blocks=15, priority_aging_steps=aging)
    )
    driver.run([Asked(1, 40), Asked(1, 2, step=1), Asked(1, 2, step=25, priority=1)])
    assert [number - 1 for _, number in driver.admissions[1:]] == order


# The engine and its options


def test_no_option_changes_a_token() -> None:
    prompts = [ids(length, salt=length) for length in (90, 5, 70, 3, 40, 8)]
    plain = Tiny(deterministic=True, num_gpu_blocks_override=40)
    expected = [o.outputs[0].token_ids for o in plain.generate(prompts, greedy(12))]
    chosen = Tiny(
        deterministic=True,
        num_gpu_blocks_override=40,
        scheduler_delay_factor=0.5,
        max_num_partial_prefills=3,
        max_long_partial_prefills=2,
        priority_aging_steps=5,
        length_aware=True,
    )
    found = chosen.generate(prompts, greedy(12))
    assert [output.outputs[0].token_ids for output in found] == expected
    assert max(chosen.engine.tokens_per_step) <= 64


def test_defaults_are_first_come_first_served() -> None:
    first_come = EngineConfig(max_num_seqs=8).resolve(MODEL)
    assert first_come.long_prefill_token_threshold == 0
    shared = EngineConfig(max_num_partial_prefills=2).resolve(MODEL)
    assert shared.long_prefill_token_threshold == 81


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheduler_delay_factor": -1}, "scheduler_delay_factor=-1 must be a number of at least"),
        ({"scheduler_delay_factor": float("nan")}, "scheduler_delay_factor=nan"),
        ({"max_num_partial_prefills": 0}, "max_num_partial_prefills=0"),
        ({"max_long_partial_prefills": 2}, "max_long_partial_prefills=2 must be at most"),
        (
            {"max_num_partial_prefills": 2, "enable_chunked_prefill": False},
            "max_num_partial_prefills=2 needs enable_chunked_prefill=True",
        ),
        ({"long_prefill_token_threshold": 3000}, "long_prefill_token_threshold=3000"),
        ({"priority_aging_steps": 0}, "priority_aging_steps=0"),
        ({"length_aware": 1}, "length_aware=1 must be True or False"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineConfig(**options).resolve(MODEL)  # type: ignore[arg-type]
