"""Nearly right requests are answered or refused, soon, and never hurt others."""

from __future__ import annotations

import json
import time

import pytest

from tests.server.mutations import mutated
from tests.server.tiny_server import TinyServer, completion

SECONDS = 1.0
CANARY_EVERY = 25
# The machine may be busy with other things for a moment; a slow kind of request is slow again.
TRIES = 3


def answer(server: TinyServer, number: int) -> tuple[float, int]:
    path, content = mutated(number)
    start = time.monotonic()
    reply = server.post(path, content, headers={"Content-Type": "application/json"})
    seconds = time.monotonic() - start
    shown = f"mutation {number}: {path} {content[:300]!r} -> {reply.status} {reply.content[:300]!r}"
    assert reply.status == 200 or 400 <= reply.status < 500, shown
    assert len(reply.content) < 800 or reply.status == 200, shown
    if reply.status != 200:
        assert reply.error, shown
    elif reply.headers["content-type"] == "application/json":
        reply.json()
    else:
        for line in reply.content.decode().split("\n\n")[:-1]:
            data = line.removeprefix("data: ")
            assert data == "[DONE]" or json.loads(data), shown
    return seconds, reply.status


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
