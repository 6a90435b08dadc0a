"""The backlog: what counts as waiting, against a naive model of slots and a queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxkv.server.errors import Overloaded
from paxkv.server.middleware.backlog import Backlog

SLOTS, LIMIT = 3, 4


def request(name: str, sequences: int = 1, tokens: int = 10) -> Any:
    params = SimpleNamespace(children=sequences)
    return SimpleNamespace(request_id=name, sampling_params=params, num_prompt=tokens)


def full(backlog: Backlog, sequences: int = 1) -> bool:
    probe = request("probe", sequences)
    try:
        backlog.enter([probe])
    except Overloaded:
        return True
    backlog.leave(probe)
    return False


@dataclass
class Model:
    """Requests start in order while their sequences fit into the slots."""

    running: list[Any] = field(default_factory=list)
    waiting: list[Any] = field(default_factory=list)

    def excess(self) -> int:
        free = SLOTS - sum(r.sampling_params.children for r in self.running)
        excess = 0
        for r in self.waiting:
            if excess or r.sampling_params.children > free:
                excess += r.sampling_params.children
            else:
                free -= r.sampling_params.children
        return excess

    def takes(self, new: Any) -> bool:
        before = self.excess()
        self.waiting.append(new)
        if before and self.excess() > LIMIT:
            self.waiting.pop()
            return False
        return True

    def step(self) -> list[Any]:
        started = []
        free = SLOTS - sum(r.sampling_params.children for r in self.running)
        while self.waiting and self.waiting[0].sampling_params.children <= free:
            free -= self.waiting[0].sampling_params.children
            started.append(self.waiting.pop(0))
        self.running += started
        return started


@given(st.lists(st.one_of(st.integers(1, 3), st.sampled_from(["step", "end", "go"]))))
def test_it_admits_what_slots_and_queue_hold(actions: list[int | str]) -> None:
    """A step schedules all that came before it; its news come before the next arrivals."""
    backlog, model = Backlog(LIMIT, None, SLOTS), Model()
    unseen: list[Any] = []
    for number, action in enumerate(actions):
        if isinstance(action, int):
            new = request(str(number), action)
            if model.takes(new):
                backlog.enter([new])
                unseen.append(new)
            else:
                with pytest.raises(Overloaded, match=f"max_num_queued_reqs={LIMIT}"):
                    backlog.enter([new])
        elif action == "step":
            backlog.stepped(model.step(), unseen)
            unseen.clear()
        else:
            queue = model.running if action == "end" else model.waiting
            if queue:
                backlog.leave(queue.pop(0))
        assert backlog.num_requests == len(model.waiting)
        assert backlog.num_tokens == 10 * len(model.waiting)
    for left in [*model.running, *model.waiting]:
        backlog.leave(left)
    assert (backlog.num_requests, backlog.num_tokens, backlog._queued()) == (0, 0, (0, 0))


def test_free_slots_count_for_nothing_once_pages_are_short() -> None:
    """Kind: a bound that a second shortage lets through. A step that leaves a slot empty and a
    request waiting does so for want of something else."""
    backlog = Backlog(2, None, 4)
    first, second = request("first"), request("second")
    backlog.enter([first, second])
    assert not full(backlog)
    backlog.stepped([first], [first, second])
    assert not full(backlog)
    backlog.enter([request("third")])
    assert full(backlog)
    backlog.stepped([second], [])
    backlog.leave(second)
    backlog.leave(request("third"))
    assert not full(backlog, sequences=4)


def test_prompt_tokens_that_start_at_once_do_not_wait() -> None:
    backlog = Backlog(None, 50, 1)
    backlog.enter([request("starts", tokens=500)])
    backlog.enter([request("waits", tokens=500)])  # by itself
    with pytest.raises(Overloaded, match="max_num_queued_tokens=50, 500 queued, 1 more"):
        backlog.enter([request("refused", tokens=1)])
    assert backlog.num_tokens == 1000
