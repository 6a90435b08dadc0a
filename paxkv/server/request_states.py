"""States of an engine's requests: running, waiting, or swapped to host memory."""

from __future__ import annotations

from typing import Literal

from paxkv.engine.request import Request
from paxkv.engine.scheduler.scheduler import Scheduler

State = Literal["running", "swapped", "waiting"]


def request_states(scheduler: Scheduler) -> dict[Request, State]:
    """Every request and its state, by rank: running ones first, then waiting ones.

    A request with a running sequence is running; otherwise, one with a swapped sequence is swapped.
    """
    states: dict[Request, State] = {s.request: "running" for s in scheduler.running}
    swapped = {sequence.request for sequence in scheduler.swapped}
    for sequence in scheduler.waiting:
        request = sequence.request
        states.setdefault(request, "swapped" if request in swapped else "waiting")
    return states
