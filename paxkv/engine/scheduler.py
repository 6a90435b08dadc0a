"""Which sequences advance in the next step, and by how many tokens."""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

from paxkv.engine import beam_groups
from paxkv.engine.beam_groups import Regrouping
from paxkv.engine.config import Limits
from paxkv.engine.order import Order, rank
from paxkv.engine.policy import Policy
from paxkv.engine.preemption import Preemption
from paxkv.engine.prompt_budget import PromptBudget
from paxkv.engine.prompt_delay import PromptDelay
from paxkv.engine.request import Request, Sequence
from paxkv.engine.schedule import Advance, Draw, Schedule
from paxkv.memory import Admission, BlockManager

HEADROOM_SHARE = 0.05


def _rows(sequences: Iterable[Sequence]) -> list[int]:
    return [s.row for s in sequences if s.row is not None]


class Scheduler:
    """Queues of sequences, and the decision who advances.

    Decoding goes first, so that every running sequence advances in every step; prompts share what
    is left of `max_num_batched_tokens`. The waiting are admitted strictly in order. When pages
    run out, the sequence of the last rank is preempted: it goes to host memory or is computed
    again later, and waits in its old place. The first in rank of the running advances in every
    step, so everybody's turn comes.

    clock: seconds, on the scale of `Request.arrival_time`.
    outgrown: sequences that ended because the whole cache holds no more of them; to be cleared by
        whoever reads it.
    """

    def __init__(
        self,
        limits: Limits,
        memory: BlockManager,
        policy: Policy | None = None,
        clock: Callable[[], float] = time.monotonic,
        preemption: Preemption | None = None,
    ) -> None:
        self._limits = limits
        self._memory = memory
        self._policy = policy or Policy()
        self._preemption = preemption or Preemption()
        self._clock = clock
        self._order = Order(self._policy, group=limits.max_num_seqs)
        self._delay = PromptDelay(self._policy.delay_factor, clock)
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.outgrown: list[Sequence] = []
        self.num_preemptions = 0
        self.num_swaps = 0
        self.num_steps = 0

    def add(self, request: Request) -> None:
        request.place = self._order.place(request, self.num_steps)
        for sequence in request.sequences:
            insort(self.waiting, sequence, key=rank)

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def swapped(self) -> list[Sequence]:
        """Those of the waiting that are in host memory."""
        return [sequence for sequence in self.waiting if sequence.swapped is not None]

    def schedule(self, uncommitted: bool) -> Schedule | None:
        """The next step; None if the results of the last must be known first, or nothing is left.

        uncommitted: a step is in flight. Nothing is preempted then: the tokens in flight may end
        sequences, and then their pages are free anyway.
        """
        while True:
            plan = Schedule(time=self._clock())
            decoding, computing = self._sort_running()
            certain = decoding + [s for s in computing[:1] if s is self.running[0]]
            short = self._memory.blocks_needed(_rows(certain)) if certain else 0
            if short > self._memory.num_free_blocks:
                if uncommitted:
                    return None
                self._make_room()
                continue
            self._decode(decoding, plan)
            left = self._limits.max_num_batched_tokens - len(decoding)
            budget = PromptBudget(self._policy, left)
            self._compute(computing, plan, budget)
            self._admit(plan, budget)
            self._spend_rest(plan, len(decoding), budget)
            plan.num_prompts = len(plan.advances) - len(decoding)
            if plan.advances:
                self.num_steps += 1
                return plan
            if uncommitted or not self.running:
                return None
            self._make_room()

    def ended(self, schedule: Schedule) -> None:
        """The results of a step are known."""
        self._delay.ended(schedule.time, schedule.num_prompts > 0)

    def finish(self, sequence: Sequence) -> None:
        """Let go of everything a sequence holds; it has ended."""
        if sequence.row is not None:
            self._memory.free(sequence.row)
            sequence.row = None
            self._leave(self.running, sequence)
        else:
            if sequence.swapped is not None:
                self._memory.swap.discard(sequence.swapped)
                sequence.swapped = None
            self._leave(self.waiting, sequence)

    def preempt(self, sequence: Sequence, *, may_swap: bool = True) -> None:
        """Take a running sequence's pages: they go to host memory, or are computed again.

        One that would not fit into an empty cache any more (it shared pages) ends instead.
        """
        if sequence.request.search is not None:
            self._preempt_beams(sequence.request, may_swap)
            return
        assert sequence.row is not None
        assert not sequence.in_flight
        if len(sequence.token_ids) > self._memory.max_tokens_per_row:
            self._outgrow(sequence)
            return
        self._put_away([sequence], may_swap)
        sequence.request.num_preemptions += 1
        self.num_preemptions += 1

    def _put_away(self, sequences: list[Sequence], may_swap: bool) -> None:
        """Sequences of one request go from running to waiting, all to host memory or none."""
        # A beam that has been drawn already must be drawn again, from its last token.
        may_swap = may_swap and all(sequence.num_remaining for sequence in sequences)
        rows = _rows(sequences)
        if may_swap and self._preemption.swaps(self._memory, rows[0]):
            away = self._memory.swap.swap_out_rows(rows)
            for sequence, swapped in zip(sequences, away or ()):
                sequence.swapped = swapped
                sequence.row = None
            self.num_swaps += away is not None
        self._let_go(sequences)
        for sequence in sequences:
            if sequence.swapped is None:
                sequence.num_computed = 0
            sequence.num_resumed += 1
            insort(self.waiting, sequence, key=rank)

    def drop_swapped(self) -> None:
        """Host memory is lost: everything in it is computed again."""
        for sequence in self.swapped:
            sequence.swapped = None
            sequence.num_computed = 0
        self._memory.swap.drop_all()

    def _preempt_beams(self, request: Request, may_swap: bool) -> None:
        """The beams of a request go together, and come back sharing the pages they share now."""
        beam_groups.set_origins(request, self._limits.block_size)
        leader = request.sequences[0]
        if (
            len(leader.token_ids) > self._memory.max_tokens_per_row
            or beam_groups.blocks_in_all(request, self._limits.block_size) > self._limits.num_blocks
        ):
            self._outgrow(leader)
            return
        running = [sequence for sequence in request.sequences if sequence.row is not None]
        assert not any(sequence.in_flight for sequence in running)
        self._put_away(running, may_swap)
        for sequence in running:
            sequence.candidates = None
            sequence.chain = None
        request.num_preemptions += 1
        self.num_preemptions += 1

    def regroup(self, regrouping: Regrouping) -> None:
        """Carry out a step of beam searches: one fork of rows, and one free."""
        rows = self._memory.spare_rows(len(regrouping.born))
        assert rows is not None
        for sequence, row in zip(regrouping.born, rows.tolist()):
            sequence.row = row
            insort(self.running, sequence, key=rank)
        if regrouping.forks:
            parents, children = zip(*regrouping.forks)
            self._memory.fork_rows(_rows(parents), _rows(children))
        self._let_go(regrouping.ended)

    def _let_go(self, sequences: list[Sequence]) -> None:
        """Free the rows of running sequences."""
        self._memory.free_rows(_rows(sequences))
        for sequence in sequences:
            self._leave(self.running, sequence)
            sequence.row = None

    def _sort_running(self) -> tuple[list[Sequence], list[Sequence]]:
        decoding, computing = [], []
        for sequence in self.running:
            if sequence.held:
                continue
            remaining = sequence.num_remaining
            if sequence.in_flight:
                if sequence.num_output < sequence.request.max_tokens:
                    decoding.append(sequence)
            elif remaining == 1:
                decoding.append(sequence)
            else:
                computing.append(sequence)
        return decoding, computing

    def _decode(self, decoding: list[Sequence], plan: Schedule) -> None:
        if not decoding:
            return
        self._memory.append_batch(_rows(decoding))
        for sequence in decoding:
            self._advance(sequence, 1, plan)

    def _compute(self, computing: list[Sequence], plan: Schedule, budget: PromptBudget) -> None:
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

    def _admit(self, plan: Schedule, budget: PromptBudget) -> None:
        if self.waiting and self.running and self._delay.holds_back(self.waiting):
            return
        reserved = len(self.running) + sum(s.request.unborn for s in self.running if s.index == 0)
        while self.waiting and not budget.spent:
            sequence = self.waiting[0]
            request = sequence.request
            needed = 1 + (request.unborn if sequence.index == 0 else 0)
            if reserved + needed > self._limits.max_num_seqs:
                return
            if not self._limits.chunked_prefill and sequence.num_remaining > budget.left:
                return
            admission = self._give_pages(sequence, budget.share(sequence.num_remaining))
            if admission is None:
                return
            sequence.swapped = None
            reserved += needed
            del self.waiting[0]
            insort(self.running, sequence, key=rank)
            sequence.row = admission.row
            sequence.num_computed = admission.num_cached_tokens
            if not sequence.num_resumed:
                request.num_cached_tokens = admission.num_cached_tokens
            plan.started.append(sequence)
            budget.take(sequence.num_remaining, admission.num_new_tokens)
            self._advance(sequence, admission.num_new_tokens, plan)

    @property
    def _headroom(self) -> int:
        """Pages that admission leaves free for those who run: one each, but few of a large pool.

        Fewer cost more in preemptions than they gain, more leave memory idle (README, Measured).
        """
        return min(len(self.running), max(1, int(HEADROOM_SHARE * self._limits.num_blocks)))

    def _give_pages(self, sequence: Sequence, first_chunk: int) -> Admission | None:
        """A row, and pages for what it has and for `first_chunk` tokens more; or None."""
        headroom = self._leaves_free(sequence)
        if sequence.swapped is not None:
            count = min(sequence.num_remaining, first_chunk)
            return self._memory.swap.swap_in(sequence.swapped, count, headroom=headroom)
        if sequence.origin is not None:
            return beam_groups.join(sequence, first_chunk, self._memory)
        request = sequence.request
        if sequence.chain is None:
            sequence.chain = self._memory.chain(salt=request.cache_salt)
        return self._memory.admit(
            sequence.token_ids,
            chain=sequence.chain,
            first_chunk=first_chunk,
            headroom=headroom,
            use_cache=request.reads_cache,
            publish=request.leaves_cache,
            resumed=sequence.num_resumed > 0,
        )

    def _spend_rest(self, plan: Schedule, first: int, budget: PromptBudget) -> None:
        """What the shares left over goes to unfinished prompts, `first` advance and later."""
        for place, advance in enumerate(plan.advances[first:], start=first):
            sequence = advance.sequence
            assert sequence.row is not None
            # One whose next token is drawn in this step is done.
            if budget.left and not sequence.in_flight:
                room = self._memory.room(sequence.row)
                more = min(sequence.num_remaining, budget.left, room)
                if more:
                    budget.left -= more
                    self._memory.append(sequence.row, more)
                    advance.count += more
                    self._move(place, more, plan)

    def _leaves_free(self, sequence: Sequence) -> int:
        """Pages that must stay free when a sequence gets a row: for those who run, and for the
        beams that follow their first."""
        request = sequence.request
        if request.search is None:
            return self._headroom
        if sequence.index > 0:
            return 0
        size = self._limits.block_size
        alone = -(-len(sequence.token_ids) // size)
        return self._headroom + beam_groups.blocks_in_all(request, size) - alone

    def _advance(self, sequence: Sequence, count: int, plan: Schedule) -> None:
        """Note the step's work; `sequence` has slots for it already."""
        plan.advances.append(Advance(sequence, sequence.num_computed, count))
        self._move(len(plan.advances) - 1, count, plan)

    def _move(self, place: int, count: int, plan: Schedule) -> None:
        """`count` more tokens of an advance; the next is drawn once all are computed."""
        sequence = plan.advances[place].sequence
        sequence.num_computed += count
        if count > 1 or not sequence.in_flight:
            known = min(sequence.num_computed, len(sequence.token_ids))
            self._memory.publish(sequence.row, sequence.token_ids, known)  # type: ignore[arg-type]
        if sequence.num_remaining:
            return
        family = [sequence, *self._fork(sequence, plan)]
        for member in family:
            member.in_flight += 1
            plan.draws.append(Draw(member, place))

    def _fork(self, parent: Sequence, plan: Schedule) -> list[Sequence]:
        """The children that were waiting for the prompt; their rows are reserved at admission."""
        unborn = parent.request.unborn
        if not unborn or parent.request.search is not None:
            return []
        rows = self._memory.fork(parent.row, unborn)  # type: ignore[arg-type]
        assert rows is not None
        children = [parent.child(len(parent.request.sequences)) for _ in range(unborn)]
        for child, row in zip(children, rows.tolist()):
            child.row = row
            insort(self.running, child, key=rank)
            plan.forked.append((parent, child))
        return children

    def _make_room(self) -> None:
        """Preempt the last in rank; a lone sequence that outgrew the whole cache ends instead."""
        first, last = self.running[0], self.running[-1]
        alone = first is last
        if last.request.search is not None:
            alone = first.request is last.request
        if alone:
            self._outgrow(last)
        else:
            self.preempt(last)

    def _outgrow(self, sequence: Sequence) -> None:
        if sequence.request.search is not None:
            for beam in sequence.request.sequences:
                self.finish(beam)
            sequence.request.end("length")
            self.outgrown.append(sequence)
            return
        sequence.end("length")
        self.finish(sequence)
        self.outgrown.append(sequence)

    @staticmethod
    def _leave(queue: list[Sequence], sequence: Sequence) -> None:
        place = bisect_left(queue, rank(sequence), key=rank)
        if place < len(queue) and queue[place] is sequence:
            del queue[place]
