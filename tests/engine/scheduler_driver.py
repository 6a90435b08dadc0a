"""The scheduler alone, with a fake device whose every sample is a token, in counted steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from paxkv.engine.config import ResolvedConfig
from paxkv.engine.request import Request
from paxkv.engine.runner.buckets import Buckets
from paxkv.engine.scheduler.output import SchedulerOutput
from paxkv.engine.scheduler.scheduler import Scheduler
from paxkv.memory import BlockManager
from paxkv.sampling.allowed_tokens import AllowedTokens
from paxkv.sampling.sampling_params import SamplingParams
from paxkv.text.stop import StopRules


def config(**changes: Any) -> ResolvedConfig:
    chosen: dict[str, Any] = {
        "max_model_len": 24,
        "block_size": 4,
        "num_gpu_blocks": 8,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 8,
        "enable_prefix_caching": False,
    }
    return ResolvedConfig(**(chosen | changes))


@dataclass(frozen=True)
class Asked:
    """One request: it arrives before step `step` and samples `output` tokens for each of n.

    max_tokens: what the scheduler is told; by default `output`.
    """

    prompt: int
    output: int
    step: int = 0
    priority: int = 0
    n: int = 1
    max_tokens: int | None = None

    @property
    def tokens(self) -> int:
        """Each of n may have to compute the prompt by itself, once it is preempted."""
        return self.n * (self.prompt + self.output)


@dataclass
class Told:
    """What became of it: steps scheduled when it came, was first admitted, and had ended."""

    asked: Asked
    request: Request
    arrived: int
    admitted: int | None = None
    ended: int | None = None


@dataclass
class Driver:
    """Runs requests to their end; `admissions` has (step, number) for each row given.

    ahead: schedule a step before the results of the last are known, as the engine does.
    make: `(config, memory, buckets, clock=…) -> scheduler`.
    mixed: sizes of the programs for steps with prompts; by default the limit alone.
    step_seconds: what a step takes on the clock, by its tokens.
    """

    config: ResolvedConfig
    ahead: bool = False
    make: Callable[..., Scheduler] = Scheduler
    step_seconds: Callable[[int], float] = lambda tokens: 1.0
    mixed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.now = 0.0
        self.memory = BlockManager(
            self.config.num_gpu_blocks,
            self.config.block_size,
            max_rows=self.config.max_num_seqs,
            max_blocks_per_row=self.config.max_blocks_per_seq,
            caching=self.config.enable_prefix_caching,
        )
        mixed = self.mixed or (self.config.max_num_batched_tokens,)
        buckets = Buckets((), mixed, (self.config.max_num_seqs,))
        self.scheduler = self.make(self.config, self.memory, buckets, clock=lambda: self.now)
        self.told: list[Told] = []
        self.admissions: list[tuple[int, int]] = []
        self.schedules: list[SchedulerOutput] = []
        self._in_flight: SchedulerOutput | None = None

    @property
    def steps(self) -> int:
        return self.scheduler.num_steps

    def run(self, requests: Iterable[Asked], most_steps: int = 20_000) -> list[Told]:
        coming = sorted(requests, key=lambda asked: asked.step)
        while coming or self.scheduler.has_work:
            # With nothing to do, time passes to the next arrival.
            while coming and (coming[0].step <= self.steps or not self.scheduler.has_work):
                self.add(coming.pop(0))
            self.step()
            assert self.steps < most_steps, "no end in sight"
        self.memory.check_invariants()
        assert self.memory.num_free_blocks == self.config.num_gpu_blocks
        return self.told

    def add(self, asked: Asked) -> Request:
        most = asked.output if asked.max_tokens is None else asked.max_tokens
        params = SamplingParams(
            n=asked.n,
            max_tokens=most,
            priority=asked.priority,
            ignore_eos=True,
            detokenize=False,
        )
        request = Request(
            request_id=str(len(self.told)),
            prompt=None,
            prompt_token_ids=[len(self.told) % 97] * asked.prompt,
            sampling_params=params,
            seed=0,
            max_tokens=most,
            rules=StopRules.for_request(
                params, eos_token_ids=(), special_tokens={}, max_tokens=most
            ),
            vocab_size=2,
            allowed=AllowedTokens(params, 2, (), []),
            arrival=len(self.told),
            arrival_time=self.now,
        )
        self.told.append(Told(asked, request, self.steps))
        self.scheduler.add(request)
        return request

    def step(self) -> SchedulerOutput | None:
        schedule = self.scheduler.schedule(uncommitted=self._in_flight is not None)
        if schedule is not None:
            self.schedules.append(schedule)
            self._note(schedule)
        in_flight_step, self._in_flight = self._in_flight, schedule
        if self.ahead:
            self._commit(in_flight_step)
        else:
            self._commit(schedule)
            self._in_flight = None
        return schedule

    def _note(self, schedule: SchedulerOutput) -> None:
        for sequence in schedule.started:
            number = sequence.request.arrival
            self.admissions.append((self.steps, number))
            if self.told[number].admitted is None:
                self.told[number].admitted = self.steps

    def _commit(self, schedule: SchedulerOutput | None) -> None:
        if schedule is None:
            return
        self.now += self.step_seconds(schedule.num_tokens)
        self.scheduler.ended(schedule)
        for sample in schedule.sample_slots:
            sequence = sample.sequence
            sequence.in_flight -= 1
            if sequence.finish is not None:
                continue
            sequence.token_ids.append(1)
            told = self.told[sequence.request.arrival]
            if len(sequence.output_token_ids) >= told.asked.output:
                sequence.end("stop")
                self.scheduler.finish(sequence)
                if sequence.request.finished:
                    told.ended = self.steps
