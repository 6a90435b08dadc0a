"""The engine's scheduler on a trace, with the device replaced by a clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from benchmarks.studies.paging.clock import Clock
from benchmarks.studies.paging.occupancy import Occupancy
from benchmarks.studies.paging.trace import Lengths
from paxkv.engine.beam.request import BeamRequest
from paxkv.engine.config import ResolvedConfig
from paxkv.engine.request import Request
from paxkv.engine.scheduler.output import SchedulerOutput
from paxkv.engine.scheduler.scheduler import Scheduler
from paxkv.memory import BlockManager
from paxkv.sampling.allowed_tokens import AllowedTokens
from paxkv.sampling.sampling_params import SamplingParams
from paxkv.text.stop import StopRules

Probe = Callable[[dict[int, int]], Any]
"""Called after each step with the final length of each live row."""


@dataclass
class Run:
    """What happened.

    Attributes:
        seconds: simulated, for the whole trace. steps: taken.
        computed: tokens computed, those computed again after preemption included.
        held: requests running, one entry for each step in which others waited, from when as
            many had ended as ran at first: those that all start together are all young.
        probes: what the probe returned in those steps.
        first_tokens: seconds until each request's first token, by number of the request.
        rest_held, rest_probes: the same as held and probes for all other steps.
    """

    seconds: float = 0.0
    steps: int = 0
    computed: int = 0
    preemptions: int = 0
    held: list[int] = field(default_factory=list)
    probes: list[Any] = field(default_factory=list)
    first_tokens: dict[int, float] = field(default_factory=dict)
    ended: int = 0
    most_held: int = 0
    rest_held: list[int] = field(default_factory=list)
    rest_probes: list[Any] = field(default_factory=list)

    @property
    def mean_held(self) -> float:
        """Requests running at once while others wait; over all steps if it never came to that."""
        held = self.held or self.rest_held
        return sum(held) / len(held)

    @property
    def occupancy(self) -> Occupancy:
        return Occupancy.mean(self.probes or self.rest_probes)


def simulate(
    requests: Sequence[Lengths],
    memory: Any,
    limits: ResolvedConfig,
    probe: Probe,
    *,
    prompts: Sequence[list[int]] | None = None,
    n: int = 1,
    clock: Clock | None = None,
) -> Run:
    """Run a trace to its end; every request is there at the start.

    memory: a `BlockManager`, or anything that answers a scheduler like one.
    prompts: token ids, where they matter. n: answers to each prompt, all of one length.
    Raises ValueError if a request cannot fit.
    """
    clock = clock or Clock()
    scheduler = Scheduler(limits, cast(BlockManager, memory))
    for number, lengths in enumerate(requests):
        if lengths.total > limits.max_model_len:
            raise ValueError(
                f"request {number} has {lengths.total} tokens; at most "
                f"max_model_len={limits.max_model_len}"
            )
        ids = prompts[number] if prompts is not None else [0] * lengths.prompt
        scheduler.add(make_request(number, ids, limits, n))
    run = Run()
    while scheduler.has_work:
        schedule = scheduler.schedule(uncommitted=False)
        if schedule is None:
            raise ValueError("a request needs more memory than the pool has")
        _note(run, schedule, scheduler, memory, requests, clock, probe)
        _commit(run, schedule, scheduler, memory, requests)
    run.preemptions = scheduler.num_preemptions
    return run


def make_request(
    number: int,
    ids: list[int],
    limits: ResolvedConfig,
    n: int = 1,
    max_tokens: int | None = None,
    priority: int = 0,
    arrival_time: float = 0.0,
    use_beam_search: bool = False,
) -> Request:
    """A request that a scheduler can run without a model; max_tokens by default all that fit."""
    most = max_tokens or limits.max_model_len - len(ids)
    params = SamplingParams(
        n=n,
        max_tokens=most,
        priority=priority,
        ignore_eos=True,
        detokenize=False,
        use_beam_search=use_beam_search,
        temperature=0.0 if use_beam_search else 1.0,
    )
    rules = StopRules.for_request(params, eos_token_ids=(), special_tokens={}, max_tokens=most)
    kind = BeamRequest if use_beam_search else Request
    return kind(
        request_id=str(number),
        prompt=None,
        prompt_token_ids=ids,
        sampling_params=params,
        seed=0,
        max_tokens=most,
        rules=rules,
        vocab_size=2,
        allowed=AllowedTokens(params, 2, (), []),
        # Memory that reserves knows a request by its salt; the block manager, with its cache on,
        # must see equal prompts as equal.
        cache_salt=None if limits.enable_prefix_caching else number,  # type: ignore[arg-type]
        arrival=number,
        arrival_time=arrival_time,
    )


def _note(
    run: Run,
    schedule: SchedulerOutput,
    scheduler: Scheduler,
    memory: Any,
    requests: Sequence[Lengths],
    clock: Clock,
    probe: Probe,
) -> None:
    rows = [advance.sequence.row for advance in schedule.scheduled]
    run.seconds += clock.seconds(schedule.num_tokens, int(memory.num_tokens[rows].sum()))
    run.steps += 1
    run.computed += schedule.num_tokens
    final = {
        cast(int, sequence.row): requests[sequence.request.arrival].total
        for sequence in scheduler.running
    }
    held = len({sequence.request.arrival for sequence in scheduler.running})
    run.most_held = max(run.most_held, held)
    counts = bool(scheduler.waiting) and run.ended >= run.most_held
    (run.held if counts else run.rest_held).append(held)
    (run.probes if counts else run.rest_probes).append(probe(final))


def _commit(
    run: Run,
    schedule: SchedulerOutput,
    scheduler: Scheduler,
    memory: Any,
    requests: Sequence[Lengths],
) -> None:
    for draw in schedule.sample_slots:
        sequence = draw.sequence
        number = sequence.request.arrival
        sequence.in_flight -= 1
        sequence.token_ids.append(1)
        run.first_tokens.setdefault(number, run.seconds)
        if len(sequence.output_token_ids) >= requests[number].output:
            run.ended += not sequence.index
            sequence.end("stop")
            scheduler.finish(sequence)
        elif _may_cache(memory, len(sequence.token_ids)):
            known = min(len(sequence.token_ids), sequence.num_computed)
            memory.cache_blocks(sequence.row, sequence.token_ids, known)


def _may_cache(memory: Any, known: int) -> bool:
    """Whether a block of output may have become full, as the engine asks at commit."""
    return isinstance(memory, BlockManager) and memory.caching and known % memory.block_size <= 1
