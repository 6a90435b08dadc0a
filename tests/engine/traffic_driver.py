"""Random traffic on a whole engine of the tiny model, each answer compared with a run alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from paxkv.engine.request import Request
from paxkv.engine.scheduler.queues import Preemption
from paxkv.memory import BlockManager
from paxkv.sampling.sampling_params import SamplingParams
from tests.engine.tiny import Tiny, ids

BASES = [ids(36, salt=salt) for salt in range(3)]


@dataclass(frozen=True)
class Ask:
    """One request of the catalogue. `params` are keyword arguments of `SamplingParams`."""

    prompt: tuple[int, ...]
    params: tuple[tuple[str, Any], ...]
    salt: str | None = None

    def start(self, tiny: Tiny, **more: Any) -> Request:
        """more: parameters that must not change the answer."""
        params = SamplingParams(**dict(self.params), **more)
        return tiny.add(list(self.prompt), params, cache_salt=self.salt)


def sampled(rng: random.Random) -> dict[str, Any]:
    return {"temperature": 0.8, "seed": rng.randrange(1000)}


def greedy(rng: random.Random) -> dict[str, Any]:
    return {"temperature": 0.0}


def children(rng: random.Random) -> dict[str, Any]:
    return {"temperature": 0.9, "seed": rng.randrange(1000), "n": rng.randint(2, 3)}


def penalised(rng: random.Random) -> dict[str, Any]:
    return {"temperature": 0.0, "presence_penalty": 0.6, "repetition_penalty": 1.2}


def scored(rng: random.Random) -> dict[str, Any]:
    return {"temperature": 0.0, "logprobs": 1, "prompt_logprobs": 1}


def secretive(rng: random.Random) -> dict[str, Any]:
    return {"temperature": 0.0, "enable_prefix_caching": False}


def searching(rng: random.Random) -> dict[str, Any]:
    """Few and short beams: more would outgrow the pool and end early."""
    return {"temperature": 0.0, "use_beam_search": True, "n": 2, "max_tokens": rng.randint(1, 8)}


Kind = Callable[[random.Random], dict[str, Any]]
KINDS: list[Kind] = [sampled, greedy, children, children, penalised, scored, secretive, searching]
"""What a request may ask for; add a kind here and the driver mixes it in."""


@cache
def catalogue(size: int = 40) -> tuple[Ask, ...]:
    rng = random.Random(5)
    asks = []
    for index in range(size):
        base = rng.choice(BASES)
        prompt = base[: rng.randint(1, len(base))] + ids(rng.randint(0, 9), salt=50 + index)
        params = {"max_tokens": rng.randint(1, 22), "ignore_eos": rng.random() < 0.7}
        params |= KINDS[index % len(KINDS)](rng)
        salt = rng.choice([None, None, None, "tenant"])
        asks.append(Ask(tuple(prompt), tuple(params.items()), salt))
    return tuple(asks)


Answer = list[tuple[list[int], str | None]]


def answer(request: Request) -> Answer:
    return [(o.token_ids, o.finish_reason) for o in request.output().outputs]


@cache
def alone(ask: Ask) -> Answer:
    """The answer of an engine that has nothing else to do and no cache."""
    request = ask.start(_ample())
    _ample().run()
    return answer(request)


@cache
def _ample() -> Tiny:
    return Tiny(deterministic=True, enable_prefix_caching=False)


@dataclass(frozen=True)
class Coin(Preemption):
    """Swaps or recomputes at random."""

    rng: random.Random = field(default_factory=random.Random)

    def swaps(self, memory: BlockManager, row: int) -> bool:
        return self.rng.random() < 0.7


class Planted(RuntimeError):
    """A step that is made to fail."""


class TrafficDriver:
    """One engine under test.

    rng: where all decisions come from. options: of the engine. failures: whether steps are made
    to fail now and then. done: how often each thing happened.
    """

    def __init__(
        self, rng: random.Random, options: dict[str, Any], *, failures: bool = True
    ) -> None:
        self.rng = rng
        self.tiny = Tiny(
            deterministic=True, num_gpu_blocks_override=20, preemption_mode="swap", **options
        )
        self.engine = self.tiny.engine
        self.engine.scheduler.queues.preemption = Coin("swap", rng=rng)
        self.live: dict[str, tuple[Ask, Request]] = {}
        self.failing: str | None = None
        self.done: Counter[str] = Counter()
        self.operations: list[tuple[float, Callable[[], None]]] = [
            (30, self.step),
            (6, self.add),
            (0.5, self.abort),
            (0.1, self.reset),
        ]
        hooks = self.engine.runner.hooks
        hooks.before_launch = lambda step: self.maybe_fail("before_launch")
        hooks.inside_step = lambda step: self.maybe_fail("inside_step")
        if failures:
            self.operations.append((0.1, self.fail))

    def run(self, events: int) -> None:
        weights = [weight for weight, _ in self.operations]
        calls = [call for _, call in self.operations]
        for _ in range(events):
            (call,) = self.rng.choices(calls, weights)
            call()
            self.check()
            self.done[call.__name__] += 1
        self.drain()

    # Events

    def add(self) -> None:
        if len(self.live) < 12:
            ask = self.rng.choice(catalogue())
            request = ask.start(self.tiny, priority=self.rng.choice([0, 0, 0, 1]))
            self.live[request.request_id] = ask, request

    def step(self) -> None:
        for request in self.engine.step():
            if request.finished and request.request_id in self.live:
                self.ended(request)

    def abort(self) -> None:
        """Rather one of those in host memory, where there are any."""
        if self.live:
            away = {s.request.request_id for s in self.engine.scheduler.swapped}
            ask, request = self.live.pop(self.rng.choice(sorted(away or self.live)))
            self.done["aborted in host memory"] += bool(away)
            self.engine.abort(request.request_id)
            self.assert_begins(ask, request)

    def reset(self) -> None:
        self.engine.block_manager.reset_prefix_cache()

    def fail(self) -> None:
        self.failing = self.rng.choice(["before_launch", "inside_step"])

    def maybe_fail(self, where: str) -> None:
        if self.failing == where:
            self.failing = None
            raise Planted(where)

    # What must hold

    def check(self) -> None:
        memory, scheduler = self.engine.block_manager, self.engine.scheduler
        memory.check_invariants()
        rows = [sequence.row for sequence in scheduler.running]
        assert sorted(rows) == memory.live_rows.tolist()  # type: ignore[type-var]
        assert len(scheduler.swapped) == memory.swap.stats().sequences
        searches = any(s.request.is_beam_group for s in scheduler.swapped)
        self.done["searches in host memory"] += searches

    def ended(self, request: Request) -> None:
        ask, _ = self.live.pop(request.request_id)
        if request.error is not None:
            assert "Planted" in request.error
            self.done["failed"] += 1
            self.assert_begins(ask, request)
            return
        assert answer(request) == alone(ask), (ask, request.num_preemptions)
        self.done["answered"] += 1
        preempted = request.num_preemptions > 0
        self.done["preempted and answered"] += preempted
        self.done["preempted searches"] += preempted and request.is_beam_group

    @staticmethod
    def assert_begins(ask: Ask, request: Request) -> None:
        if request.is_beam_group:
            return
        for (tokens, _), (whole, _) in zip(answer(request), alone(ask)):
            assert whole[: len(tokens)] == tokens

    def drain(self) -> None:
        steps = 0
        while self.engine.has_work:
            self.step()
            self.check()
            steps += 1
            assert steps < 5000, "the engine makes no progress"
        self.engine.step()
        assert not self.live
        stats = self.engine.stats()
        assert (stats.running, stats.waiting, stats.swapped, stats.used_blocks) == (0, 0, 0, 0)
        assert stats.free_blocks == stats.num_blocks
        assert stats.cpu_free_blocks == stats.num_cpu_blocks
        assert not len(self.engine.block_manager.live_rows)
