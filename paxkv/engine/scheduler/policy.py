"""Scheduling policies: order, prompt delay, prompt budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from paxkv.engine.config import ResolvedConfig
from paxkv.engine.request import Request
from paxkv.engine.sequence import Sequence

Rank = tuple[int, int, int, int]


class Order:
    """Order of requests: larger priority first, then earlier arrival.

    A rank is assigned once, when a request is queued, and never changes. So the queue is never
    sorted again, and only finitely many later arrivals can ever stand before a request:

    - With aging, a waiting request rises by one level of priority every `priority_aging_steps`
      steps. All waiting requests rise alike, so only differences in arrival count, and the rank
      holds the level at step 0. A newcomer whose priority is higher by p passes requests that
      came at most (p + 1) * priority_aging_steps steps before it, and no others.
    - With `length_aware`, requests of one level are ordered by the power of two that their prompt
      and max_tokens stay below, but only among `max_num_seqs` arrivals in a row: later groups
      come later, however short.
    """

    def __init__(self, config: ResolvedConfig) -> None:
        self._aging_steps = config.priority_aging_steps
        self._group = config.max_num_seqs if config.length_aware else 1

    def rank(self, request: Request, step: int) -> Rank:
        """Rank of a request that is queued after `step` scheduled steps."""
        level = -request.sampling_params.priority
        if self._aging_steps is not None:
            level += step // self._aging_steps
        longest = request.num_prompt + request.max_tokens
        size = longest.bit_length() if self._group > 1 else 0
        return level, request.arrival // self._group, size, request.arrival


def rank(sequence: Sequence) -> tuple[int, ...]:
    """Rank of a sequence, by its request, then its index; smaller runs first, is preempted last."""
    return (*sequence.request.rank, sequence.index)


class PromptDelay:
    """vLLM's `scheduler_delay_factor`: while others run, no prompt starts before the oldest waiting
    one has waited longer than `factor` times what the last step with a prompt took.

    clock: seconds, on the scale of `Request.arrival_time`.
    latency: seconds of that step, 0 before there was one.
    """

    def __init__(self, factor: float, clock: Callable[[], float]) -> None:
        self._factor = factor
        self._clock = clock
        self.latency = 0.0
        self._last_end = float("-inf")

    def ended(self, start: float, had_prompt: bool) -> None:
        """Note the end of a step scheduled at `start`, which ran after the last one had ended."""
        now = self._clock()
        if had_prompt:
            self.latency = now - max(start, self._last_end)
        self._last_end = now

    def holds_back(self, waiting: Iterable[Sequence]) -> bool:
        if not self._factor or not self.latency:
            return False
        oldest = min(sequence.request.arrival_time for sequence in waiting)
        return self._clock() - oldest <= self._factor * self.latency


class PromptBudget:
    """Equal shares for up to `max_num_partial_prefills` prompts that a step does not complete.

    A prompt that is complete within its share leaves the rest to others, so a long prompt does not
    stall the short ones behind it. `max_long_partial_prefills` of the long ones have a share; one
    more gets a single token, which keeps its place in line: no prompt is passed over. What is left
    in the end goes to the first in line.

    left: tokens.
    """

    def __init__(self, config: ResolvedConfig, tokens: int) -> None:
        self.left = tokens
        self._threshold = config.long_prefill_token_threshold
        self._shares = config.max_num_partial_prefills
        self._long_shares = config.max_long_partial_prefills

    @property
    def spent(self) -> bool:
        """Whether nothing is left for another prompt."""
        return not self.left or not self._shares

    def share(self, remaining: int) -> int:
        """Tokens that a prompt with `remaining` to compute may have; 0 if spent."""
        if self.spent:
            return 0
        if self._is_long(remaining) and not self._long_shares:
            return 1
        return -(-self.left // self._shares)

    def take(self, remaining: int, count: int) -> None:
        """Spend `count` tokens on a prompt that had `remaining` to compute."""
        parked = self._is_long(remaining) and not self._long_shares
        self.left -= count
        if count < remaining and not parked:
            self._shares -= 1
            self._long_shares -= self._is_long(remaining)

    def _is_long(self, remaining: int) -> bool:
        return 0 < self._threshold < remaining
