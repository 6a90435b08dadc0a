"""Nearly right requests are answered or refused, soon, and never hurt others."""

from __future__ import annotations

import json
import time

import pytest

from tests.server.mutations import mutated
from tests.server.tiny_server import TinyServer, completion

SECONDS = 1.0
SECONDS_PER_TOKEN = 0.01  # of answers that a mutation made long
CANARY_EVERY = 25
# The machine may be busy with other things for a moment; a slow kind of request is slow again.
TRIES = 3


def answer(server: TinyServer, number: int) -> tuple[float, int]:
    """Seconds beyond what the length of the answer explains, and the status."""
    path, content = mutated(number)
    start = time.monotonic()
    reply = server.post(path, content, headers={"Content-Type": "application/json"})
    seconds = time.monotonic() - start
    shown = f"mutation {number}: {path} {content[:300]!r} -> {reply.status} {reply.content[:300]!r}"
    assert reply.status == 200 or 400 <= reply.status < 500, shown
    assert len(reply.content) < 800 or reply.status == 200, shown
    tokens = 0
    if reply.status != 200:
        assert reply.error, shown
    elif reply.headers["content-type"] == "application/json":
        tokens = (reply.json().get("usage") or {}).get("total_tokens", 0)
    else:
        events = reply.content.decode().split("\n\n")[:-1]
        for data in (line.removeprefix("data: ") for line in events):
            assert data == "[DONE]" or json.loads(data), shown
        tokens = len(events)
    return seconds - tokens * SECONDS_PER_TOKEN, reply.status


def hurt(server: TinyServer, first: int, count: int) -> None:
    canary = completion("the cat", max_tokens=4)
    want = server.post("/v1/completions", canary).json()["choices"]
    statuses = set()
    for number in range(first, first + count):
        for _ in range(TRIES):
            seconds, status = answer(server, number)
            statuses.add(status)
            if seconds < SECONDS:
                break
        else:
            pytest.fail(f"mutation {number} took {seconds:.1f} s, {TRIES} times")
        if number % CANARY_EVERY == 0:
            assert server.post("/v1/completions", canary).json()["choices"] == want
    assert {200, 400} <= statuses


def test_300_mutations(server: TinyServer) -> None:
    hurt(server, 0, 300)


@pytest.mark.full
def test_2000_mutations(server: TinyServer) -> None:
    hurt(server, 1000, 2000)
