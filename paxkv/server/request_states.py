"""What the requests of an engine do: each runs, waits, or waits in host memory."""

from __future__ import annotations

from typing import Literal

from paxkv.engine.request import Request
from paxkv.engine.scheduler.scheduler import Scheduler

State = Literal["running", "swapped", "waiting"]


def request_states(scheduler: Scheduler) -> dict[Request, State]:
    """Every request and its state, in the order of ranks: those that run, then those in line.

    One with a sequence that runs is running, else one with a sequence in host memory is swapped.
    """
    states: dict[Request, State] = {s.request: "running" for s in scheduler.running}
    swapped = {sequence.request for sequence in scheduler.swapped}
    for sequence in scheduler.waiting:
        request = sequence.request
        states.setdefault(request, "swapped" if request in swapped else "waiting")
    return states
