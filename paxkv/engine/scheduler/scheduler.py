"""Which sequences advance in the next step, and by how many tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain

from paxkv.engine.config import ResolvedConfig
from paxkv.engine.request import Request
from paxkv.engine.runner.buckets import Buckets
from paxkv.engine.scheduler.output import SampleSlot, ScheduledSequence, SchedulerOutput
from paxkv.engine.scheduler.policy import Order, PromptBudget, PromptDelay, rank
from paxkv.engine.scheduler.queues import (
    Preemption,
    Queues,
    blocks_in_all,
    displaced_by,
    rows_of,
    set_shared_prefixes,
)
from paxkv.engine.sequence import Sequence
from paxkv.memory import BlockManager

HEADROOM_SHARE = 0.05


class Scheduler:
    """Decides which sequences advance, and by how many tokens.

    Decoding goes first, so that every running sequence advances in every step; prompts share what
    is left of `max_num_batched_tokens`. Waiting sequences start strictly in order. When pages
    run out, the sequence of the last rank is preempted: it goes to host memory or is computed
    again later, and waits in its old place. The first in rank of the running advances in every
    step, so no sequence starves.

    buckets: sizes of the programs, which a step with prompts fills as well as it can.
    clock: seconds, on the scale of `Request.arrival_time`.
    out_of_cache: sequences that ended because the whole cache holds no more of them; the
        reader clears it.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        memory: BlockManager,
        buckets: Buckets | None = None,
        clock: Callable[[], float] = time.monotonic,
        preemption: Preemption | None = None,
    ) -> None:
        self._config = config
        self._memory = memory
        self._buckets = buckets or Buckets.single(
            config.max_num_seqs, config.max_num_batched_tokens
        )
        self._clock = clock
        self._order = Order(config)
        self._delay = PromptDelay(config.scheduler_delay_factor, clock)
        self.queues = Queues(memory, preemption or Preemption())
        self.out_of_cache: list[Sequence] = []
        self.num_preemptions = 0
        self.num_swaps = 0
        self.num_steps = 0

    @property
    def running(self) -> list[Sequence]:
        return self.queues.running

    @property
    def waiting(self) -> list[Sequence]:
        return self.queues.waiting

    @property
    def swapped(self) -> list[Sequence]:
        return self.queues.swapped

    def add(self, request: Request) -> None:
        request.rank = self._order.rank(request, self.num_steps)
        for sequence in request.sequences:
            self.queues.wait(sequence)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def schedule(self, uncommitted: bool) -> SchedulerOutput | None:
        """Schedule a step; None if the last one's results are needed first, or nothing is left.

        uncommitted: a step is in flight. Nothing is preempted then: the tokens in flight may end
        sequences, and then their pages are free anyway.
        """
        while True:
            plan = SchedulerOutput(time=self._clock())
            decoding, computing = self._sort_running()
            certain = decoding + [s for s in computing[:1] if s is self.running[0]]
            short = self._memory.blocks_needed(rows_of(certain)) if certain else 0
            if short > self._memory.num_free_blocks:
                if uncommitted:
                    return None
                self._make_room()
                continue
            if displaced := self._displaced(decoding, computing):
                if uncommitted:
                    return None
                for sequence in displaced:
                    self._displace(sequence)
                continue
            self._decode(decoding, plan)
            budget = PromptBudget(self._config, self._left_to_prompts(decoding, computing))
            self._compute(computing, plan, budget)
            self._admit(plan, budget)
            self._spend_rest(plan, len(decoding), budget)
            plan.num_prompts = len(plan.scheduled) - len(decoding)
            if plan.scheduled:
                self.num_steps += 1
                return plan
            if uncommitted or not self.running:
                return None
            self._make_room()

    def ended(self, schedule: SchedulerOutput) -> None:
        """Note that the results of a step are known."""
        self._delay.ended(schedule.time, schedule.num_prompts > 0)

    def finish(self, sequence: Sequence) -> None:
        """Free everything an ended sequence holds."""
        self.queues.finish(sequence)

    def preempt(self, sequence: Sequence, *, may_swap: bool = True) -> None:
        """Take the pages of a running sequence and of the rest of its group.

        They go to host memory, or are computed again. A group that would no longer fit into an
        empty cache (it shared pages) ends instead.
        """
        group, size = sequence.group, self._config.block_size
        set_shared_prefixes(group, size)
        if (
            len(sequence.token_ids) > self._memory.max_tokens_per_row
            or blocks_in_all(group, size) > self._config.num_gpu_blocks
        ):
            self._end_out_of_cache(sequence)
            return
        running = [member for member in group if member.row is not None]
        assert not any(member.in_flight for member in running)
        self.num_swaps += self.queues.preempt(running, may_swap)
        sequence.request.num_preemptions += 1
        self.num_preemptions += 1

    def _displaced(self, decoding: list[Sequence], computing: list[Sequence]) -> list[Sequence]:
        """Running sequences to preempt for the first in line that lacks slots or pages."""
        if not self._config.priority_preemption or not self.running:
            return []
        head = self.waiting[0] if self.waiting else None
        free = self._memory.num_free_blocks
        free -= self._memory.blocks_needed(rows_of(decoding)) if decoding else 0
        for sequence in computing:
            if head is not None and rank(head) < rank(sequence):
                break
            pages = self._memory.blocks_needed(rows_of([sequence]), sequence.num_remaining)
            if found := displaced_by(sequence, 0, pages - free, self.running, self._memory):
                return found
            free -= pages
        if head is None or self.queues.coming_back or self._delay.holds_back(self.waiting):
            return []
        slots = self._reserved + self._slots_to_start(head) - self._config.max_num_seqs
        pages = self._leaves_free(head) + self.queues.pages_wanted(head)
        return displaced_by(head, slots, pages - free, self.running, self._memory)

    def _displace(self, sequence: Sequence) -> None:
        for member in sequence.group:
            member.displaced_at = len(member.token_ids)
        self.preempt(sequence)

    def _sort_running(self) -> tuple[list[Sequence], list[Sequence]]:
        decoding, computing = [], []
        for sequence in self.running:
            if sequence.held:
                continue
            if sequence.in_flight:
                if sequence.num_output < sequence.request.max_tokens:
                    decoding.append(sequence)
            elif sequence.num_remaining == 1:
                decoding.append(sequence)
            else:
                computing.append(sequence)
        return decoding, computing

    def _decode(self, decoding: list[Sequence], plan: SchedulerOutput) -> None:
        if not decoding:
            return
        self._memory.append_batch(rows_of(decoding))
        for index, sequence in enumerate(decoding):
            if sequence.in_flight:
                # Its token is unknown, so no block can be cached; it has forked before.
                plan.scheduled.append(ScheduledSequence(sequence, sequence.num_computed, 1))
                sequence.num_computed += 1
                sequence.in_flight += 1
                plan.sample_slots.append(SampleSlot(sequence, index))
            else:
                self._advance(sequence, 1, plan)

    def _left_to_prompts(self, decoding: list[Sequence], computing: list[Sequence]) -> int:
        """Tokens of the step that are left beside those of `decoding`."""
        most = self._config.max_num_batched_tokens
        if not self._config.enable_chunked_prefill:
            return most - len(decoding)
        wanted = len(decoding)
        for sequence in chain(computing, self.waiting):
            wanted += sequence.num_remaining
            if wanted >= most:
                break
        return self._buckets.tokens_of_step(wanted, len(decoding)) - len(decoding)

    def _compute(
        self, computing: list[Sequence], plan: SchedulerOutput, budget: PromptBudget
    ) -> None:
        for sequence in computing:
            if budget.spent:
                return
            assert sequence.row is not None
            remaining = sequence.num_remaining
            share = budget.share(remaining)
            count = min(remaining, share, self._memory.room(sequence.row))
            if not count:
                continue
            budget.take(remaining, count)
            self._memory.append(sequence.row, count)
            self._advance(sequence, count, plan)

    def _admit(self, plan: SchedulerOutput, budget: PromptBudget) -> None:
        if not self.waiting:
            return
        coming_back = self.queues.coming_back
        if self.running and not coming_back and self._delay.holds_back(self.waiting):
            return
        reserved = self._reserved
        while self.waiting and not budget.spent:
            sequence = coming_back.pop(0) if coming_back else self.waiting[0]
            request = sequence.request
            if reserved + self._slots_to_start(sequence) > self._config.max_num_seqs:
                return
            if not self._config.enable_chunked_prefill and sequence.num_remaining > budget.left:
                return
            share = budget.share(sequence.num_remaining)
            allocation = self.queues.allocate(sequence, share, self._leaves_free(sequence))
            if allocation is None:
                return
            sequence.swapped = None
            reserved += self._slots_of(sequence)
            self.waiting.remove(sequence)
            self.queues.run(sequence, allocation.row)
            sequence.num_computed = allocation.num_cached_tokens
            if not sequence.num_resumed:
                request.num_cached_tokens = allocation.num_cached_tokens
            plan.started.append(sequence)
            budget.take(sequence.num_remaining, allocation.num_new_tokens)
            self._advance(sequence, allocation.num_new_tokens, plan)

    @property
    def _reserved(self) -> int:
        """Slots of running sequences and of their pending children."""
        return sum(map(self._slots_of, self.running))

    def _slots_of(self, sequence: Sequence) -> int:
        return 1 + (sequence.request.num_pending_children if sequence.index == 0 else 0)

    def _slots_to_start(self, sequence: Sequence) -> int:
        """Slots that must be free for it: of a preempted group, for all that follow its first."""
        group = sequence.group
        return self._slots_of(sequence) + (len(group) - 1 if sequence is group[0] else 0)

    @property
    def _headroom(self) -> int:
        """Pages that allocation leaves to running sequences: one each, but few of a large pool.

        Fewer cost more in preemptions than they gain; more leave memory idle (docs/performance.md).
        """
        return min(len(self.running), max(1, int(HEADROOM_SHARE * self._config.num_gpu_blocks)))

    def _spend_rest(self, plan: SchedulerOutput, first: int, budget: PromptBudget) -> None:
        """Give what the shares left over to unfinished prompts, from index `first` on."""
        for index, advance in enumerate(plan.scheduled[first:], start=first):
            sequence = advance.sequence
            assert sequence.row is not None
            # A prompt whose next token is sampled in this step is complete.
            if budget.left and not sequence.in_flight:
                room = self._memory.room(sequence.row)
                more = min(sequence.num_remaining, budget.left, room)
                if more:
                    budget.left -= more
                    self._memory.append(sequence.row, more)
                    advance.count += more
                    self._move(index, more, plan)

    def _leaves_free(self, sequence: Sequence) -> int:
        """Pages that must stay free when a sequence starts: for running ones and, if it is the
        first of its group, for the rest of the group."""
        group = sequence.group
        if sequence is not group[0]:
            return 0
        size = self._config.block_size
        alone = -(-len(sequence.token_ids) // size)
        return self._headroom + self._promised(sequence) + blocks_in_all(group, size) - alone

    def _promised(self, sequence: Sequence) -> int:
        """Pages for the rest of running prompts of higher priority: the sequences that were
        preempted for them must not take these back."""
        if not self._config.priority_preemption:
            return 0
        priority = sequence.request.sampling_params.priority
        return sum(
            self._memory.blocks_needed(rows_of([other]), other.num_remaining)
            for other in self.running
            if other.num_remaining > 1 and other.request.sampling_params.priority > priority
        )

    def _advance(self, sequence: Sequence, count: int, plan: SchedulerOutput) -> None:
        """Add `count` tokens of `sequence` to the step; it has slots for them already."""
        plan.scheduled.append(ScheduledSequence(sequence, sequence.num_computed, count))
        self._move(len(plan.scheduled) - 1, count, plan)

    def _move(self, index: int, count: int, plan: SchedulerOutput) -> None:
        """Count `count` more tokens as computed; sample once none remain."""
        sequence = plan.scheduled[index].sequence
        sequence.num_computed += count
        if count > 1 or not sequence.in_flight:
            known = min(sequence.num_computed, len(sequence.token_ids))
            self._memory.cache_blocks(sequence.row, sequence.token_ids, known)  # type: ignore[arg-type]
        if sequence.num_remaining:
            return
        family = [sequence]
        if sequence.request.forks:
            # Their rows are reserved at allocation.
            family += self.queues.fork(sequence, sequence.request.forks)
            plan.forked += [(sequence, child) for child in family[1:]]
        for member in family:
            member.in_flight += 1
            plan.sample_slots.append(SampleSlot(member, index))

    def _make_room(self) -> None:
        """Preempt the last in rank; a lone group that outgrew the whole cache ends instead."""
        last = self.running[-1]
        if self.running[0] in last.group:
            self._end_out_of_cache(last)
        else:
            self.preempt(last)

    def _end_out_of_cache(self, sequence: Sequence) -> None:
        for member in sequence.group:
            self.finish(member)
        sequence.request.cut(sequence)
        self.out_of_cache.append(sequence)
