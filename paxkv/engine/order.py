"""Who comes before whom: to be admitted first, and to be preempted last."""

from __future__ import annotations

from paxkv.engine.policy import Policy
from paxkv.engine.request import Request
from paxkv.engine.sequence import Sequence

Place = tuple[int, int, int, int]


class Order:
    """Places requests in line: larger priority first, then earlier arrival.

    A place is given once, when a request is queued, and never changes; so nobody has to be sorted
    again, and only finitely many later arrivals can ever stand before a request:

    - With ageing a request rises by one level of priority every `aging_steps` steps. All who wait
      rise alike, so what counts is who started how much earlier: the level at time 0. A newcomer
      whose priority is higher by p passes those that came at most (p + 1) * aging_steps steps
      before it, and nobody else.
    - Grouped by length, requests of one level are lined up by the power of two their prompt and
      max_tokens stay below, but only among `group` arrivals in a row: those of the next group come
      later, however short.
    """

    def __init__(self, policy: Policy, group: int) -> None:
        self._aging_steps = policy.aging_steps
        self._group = group if policy.length_aware else 1

    def place(self, request: Request, step: int) -> Place:
        """step: steps scheduled before the request was queued."""
        level = -request.params.priority
        if self._aging_steps is not None:
            level += step // self._aging_steps
        longest = request.num_prompt + request.max_tokens
        size = longest.bit_length() if self._group > 1 else 0
        return level, request.arrival // self._group, size, request.arrival


def rank(sequence: Sequence) -> tuple[int, ...]:
    """Smaller runs first and is preempted last: its request's place, then the elder child."""
    return (*sequence.request.place, sequence.index)
