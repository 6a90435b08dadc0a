"""The loop: schedule a step, launch it, commit the one before, sample."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass

import numpy as np

from paxkv.engine.beam.request import BeamRequest, Searches
from paxkv.engine.config import ResolvedConfig
from paxkv.engine.fork import refuse_forked
from paxkv.engine.request import Request
from paxkv.engine.runner.model_input import InputBuilder
from paxkv.engine.runner.results import PromptResults, SamplerOutput
from paxkv.engine.runner.runner import Runner
from paxkv.engine.scheduler.output import SchedulerOutput
from paxkv.engine.scheduler.queues import Preemption
from paxkv.engine.scheduler.scheduler import Scheduler
from paxkv.engine.sequence import Sequence
from paxkv.engine.stats import EngineStats
from paxkv.memory import BlockManager
from paxkv.outputs import token_logprobs

logger = logging.getLogger(__name__)

REMEMBERED_STEPS = 4096


@dataclass
class InFlightStep:
    """A step whose sampled tokens the host has not read yet."""

    schedule: SchedulerOutput
    results: SamplerOutput


class Engine:
    """Requests in, one step at a time, finished requests out.

    The host runs one step ahead: while the device computes step k + 1, the tokens of step k are
    committed, and only then are tokens sampled for k + 1, so that sampling knows stops and bans.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        memory: BlockManager,
        input_builder: InputBuilder,
        runner: Runner,
        preemption: Preemption | None = None,
    ) -> None:
        self.config = config
        self.block_manager = memory
        self.scheduler = Scheduler(config, memory, input_builder.buckets, preemption=preemption)
        self.searches = Searches(config.max_num_seqs, config.num_beam_candidates)
        self.input_builder = input_builder
        self.runner = runner
        self.tokens_per_step: deque[int] = deque(maxlen=REMEMBERED_STEPS)
        self.num_steps = 0
        self._in_flight: InFlightStep | None = None
        self._requests: dict[str, Request] = {}
        self._arrivals = 0
        self._changed: dict[str, Request] = {}
        self._host_seconds = 0.0

    # Requests

    def add(self, request: Request) -> None:
        """Queue a request that an `InputProcessor` made. Raises ValueError if its id is in use."""
        if request.request_id in self._requests:
            raise ValueError(f"request_id={request.request_id!r} is in use")
        request.arrival = self._arrivals
        self._arrivals += 1
        self._requests[request.request_id] = request
        self.scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """End a request and all its sequences now; unknown ids are ignored."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._end(request, "abort")
            request.finished_time = time.monotonic()

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def close(self) -> None:
        """End what has not ended, and release the device's memory; nothing runs any more."""
        for request_id in list(self._requests):
            self.abort(request_id)
        self._in_flight = None
        self.runner.release()

    # The loop

    def step(self) -> list[Request]:
        """Advance by a step; return the requests that have changed, finished ones included."""
        refuse_forked()
        self._changed = {}
        start, device_seconds = time.perf_counter(), self.runner.device_seconds
        schedule = self.scheduler.schedule(uncommitted=self._in_flight is not None)
        previous, self._in_flight = self._in_flight, None
        try:
            try:
                landing = self._launch(schedule)
            finally:
                self._commit(previous)
            self._land(landing)
            self._in_flight = self._sample(schedule)
        except BaseException as error:
            self._recover(schedule, error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._close_finished()
            self._host_seconds += time.perf_counter() - start
            self._host_seconds -= self.runner.device_seconds - device_seconds
        return list(self._changed.values())

    def _close_finished(self) -> None:
        for sequence in self.scheduler.out_of_cache:
            self._note(sequence.request)
        self.scheduler.out_of_cache.clear()
        for request in self._changed.values():
            if request.finished and request.finished_time is None:
                request.finished_time = time.monotonic()
                self._requests.pop(request.request_id, None)

    def _launch(self, schedule: SchedulerOutput | None) -> int:
        """Launch the step, if there is one; return the chunks of pages to wait for after it."""
        landing = self.runner.num_landing
        if schedule is None:
            self.runner.transfer(self.block_manager.swap.take_transfers())
            return self.runner.num_landing
        now = time.monotonic()
        for sequence in schedule.started:
            if sequence.request.first_scheduled is None:
                sequence.request.first_scheduled = now
                self._note(sequence.request)
        self.runner.forward(self.input_builder.plan(schedule))
        self.num_steps += 1
        self.tokens_per_step.append(schedule.num_tokens)
        return landing

    def _land(self, chunks: int) -> None:
        """Pages that left with an earlier step are in host memory by now, or nearly."""
        if chunks:
            self.block_manager.swap.landed(self.runner.land(chunks))

    def _sample(self, schedule: SchedulerOutput | None) -> InFlightStep | None:
        """Issue the samples of the step, and read what it tells of prompts."""
        if schedule is None:
            return None
        results = self.runner.sample(schedule)
        PromptResults(self.runner, schedule).read()
        return InFlightStep(schedule, results)

    def _commit(self, in_flight_step: InFlightStep | None) -> None:
        if in_flight_step is None:
            return
        results = in_flight_step.results
        tokens, bad = results.tokens(), results.bad()
        self.scheduler.ended(in_flight_step.schedule)
        now = time.monotonic()
        block_size = self.config.block_size
        beams: list[int] = []
        for index, sequence in enumerate(results.sequences):
            sequence.in_flight -= 1
            if sequence.finish is not None:
                continue
            if bad[index]:
                self._fail(
                    sequence.request,
                    "no token could be sampled: the model's logits were not finite, or bad_words, "
                    "allowed_token_ids and structured_outputs together left none",
                )
                continue
            request = sequence.request
            if request.first_token is None:
                request.first_token = now
            if request.is_beam_group:
                beams.append(index)
                continue
            if request.wants_logprobs:
                self._add_logprobs(sequence, results, index, tokens[index])
            sequence.accept(tokens[index])
            if len(sequence.token_ids) % block_size < 2:
                self._cache_blocks(sequence)
            if sequence.finish is not None:
                self.scheduler.finish(sequence)
            self._note(request)
        if beams:
            self._search(results, beams)

    def _search(self, results: SamplerOutput, indices: list[int]) -> None:
        """Store the candidates of beams; advance the searches whose beams all have theirs."""
        # A beam has ended meanwhile if another of its request has failed.
        indices = [index for index in indices if results.sequences[index].finish is None]
        ids, logprobs = results.candidates()
        sampled = [results.sequences[index] for index in indices]
        self.searches.take(sampled, ids[indices], logprobs[indices])
        requests = {id(s.request): s.request for s in sampled if isinstance(s.request, BeamRequest)}
        complete = [request for request in requests.values() if request.all_sampled]
        self.scheduler.queues.regroup(self.searches.step(complete))
        for request in complete:
            self._note(request)

    def _cache_blocks(self, sequence: Sequence) -> None:
        """Cache full blocks of output: the keys of their last token are computed or launched."""
        certain = min(len(sequence.token_ids), sequence.num_computed)
        self.block_manager.cache_blocks(sequence.row, sequence.token_ids, certain)  # type: ignore[arg-type]

    def _add_logprobs(
        self, sequence: Sequence, results: SamplerOutput, index: int, token: int
    ) -> None:
        assert results.sampled is not None
        found = results.sampled.logprobs
        value = float(np.asarray(found.chosen)[index])
        sequence.cumulative_logprob += value
        wanted = sequence.request.sampling_params.logprobs
        if sequence.logprobs is None or wanted is None:
            return
        sequence.logprobs.append(
            token_logprobs(
                token,
                value,
                int(np.asarray(found.rank)[index]),
                np.asarray(found.ids)[index, :wanted].tolist(),
                np.asarray(found.values)[index, :wanted].tolist(),
                sequence.request.decoder(sequence.token_ids),
            )
        )

    # Ends

    def _end(self, request: Request, reason: str) -> None:
        for sequence in request.sequences:
            if sequence.finish is None:
                self.scheduler.finish(sequence)
        request.end(reason)
        self._note(request)

    def _fail(self, request: Request, message: str) -> None:
        request.error = message
        logger.error("request %s failed: %s", request.request_id, message)
        self._end(request, "error")

    def _note(self, request: Request) -> None:
        self._changed[request.request_id] = request

    def _recover(self, schedule: SchedulerOutput | None, error: BaseException) -> None:
        """End the requests of a failed step with an error; all others continue.

        Requests whose sampled tokens can no longer be read end too. Cached and swapped blocks may
        hold nothing if the failed step was to write them, so all are forgotten. If the pages were
        donated to the failed step, they are allocated again and everything is recomputed.
        """
        logger.error("step %d failed", self.num_steps, exc_info=error)
        self._in_flight = None
        lost = [sequence for sequence in self.scheduler.running if sequence.in_flight]
        if schedule is not None:
            lost += [advance.sequence for advance in schedule.scheduled]
        affected = {id(sequence.request): sequence.request for sequence in lost}
        for request in affected.values():
            if not request.finished:
                self._fail(request, f"the step failed: {type(error).__name__}: {error}")
        self.block_manager.reset_prefix_cache()
        self.block_manager.patch_all()
        self.scheduler.queues.drop_swapped()
        self.runner.swapper.drop()
        if not self.runner.alive:
            for sequence in list(self.scheduler.running):
                if sequence.row is not None:
                    self.scheduler.preempt(sequence, may_swap=False)
            self.runner.reset()

    # Statistics

    def stats(self) -> EngineStats:
        """Engine statistics now, as a frozen dataclass."""
        memory = self.block_manager.stats()
        swap = self.block_manager.swap.stats()
        swapped = len(self.scheduler.swapped)
        page = self.runner.page_bytes
        return EngineStats(
            num_blocks=memory.total_blocks,
            free_blocks=memory.free_blocks,
            used_blocks=memory.used_blocks,
            cached_blocks=memory.cached_blocks,
            shared_blocks=memory.shared_blocks,
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting) - swapped,
            swapped=swapped,
            num_cpu_blocks=swap.total_blocks,
            cpu_free_blocks=swap.free_blocks,
            cpu_used_blocks=swap.used_blocks,
            swap_bytes_out=swap.pages_out * page,
            swap_bytes_in=swap.pages_in * page,
            preemptions=self.scheduler.num_preemptions,
            preemptions_swapped=self.scheduler.num_swaps,
            cow_copies=memory.cow_copies,
            prefix_cache_queries=memory.prefix_queries,
            prefix_cache_hits=memory.prefix_hits,
            attention=self.runner.programs.arguments.kernels.reason,
            compiled_programs=self.runner.compiler.names,
            compile_seconds=self.runner.compiler.seconds,
            num_steps=self.num_steps,
            tokens_per_step=tuple(self.tokens_per_step),
            host_seconds_per_step=self._host_seconds / max(1, self.num_steps),
        )
