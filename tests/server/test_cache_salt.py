"""cache_salt keeps tenants apart: what one has asked neither shortens nor slows another's work."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from tests.regressions.test_metrics import Scrape
from tests.server.tiny_server import TinyModel, TinyServer, chat, completion, serving

COMPLETIONS = "/v1/completions"
TEXT = "the cat sat on the mat and the dog ran home"
BODIES = [
    (COMPLETIONS, completion(TEXT)),
    (COMPLETIONS, completion([*range(40, 90)], n=2)),
    ("/v1/chat/completions", chat(TEXT)),
    ("/generate", completion(TEXT)),
    ("/v1/embeddings", {"input": TEXT}),
]
TRIALS = 150
PROMPT = 400


def work(server: TinyServer, path: str, body: dict[str, Any]) -> tuple[int, int | None]:
    """Tokens that the engine computed for a request, and those it says it had cached."""
    before = Scrape(server)["iteration_tokens_total_sum"]
    reply = server.post(path, body)
    assert reply.status == 200, reply.content
    server.wait_until(lambda: not server.service.loop.calls)
    computed = int(Scrape(server)["iteration_tokens_total_sum"] - before)
    details = (reply.json().get("usage") or {}).get("prompt_tokens_details")
    return computed, details and details["cached_tokens"]


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_another_salt_is_as_much_work_as_a_first_time(path: str, body: dict[str, Any]) -> None:
    with serving() as server:
        server.on_engine(lambda engine: engine.block_manager.reset_prefix_cache())
        salts: list[str | None] = [None, "a", "b", "A", "a "]
        first = [work(server, path, {**body, "cache_salt": salt}) for salt in salts]
        assert first == first[:1] * len(salts)
        assert first[0][1] in (0, None)
        again = [work(server, path, {**body, "cache_salt": salt}) for salt in salts]
        assert again == again[:1] * len(salts)
        saved = first[0][0] - again[0][0]
        assert saved >= 4
        assert again[0][1] in (saved, None)


def seconds(server: TinyServer, prompt: list[int], salt: str) -> float:
    start = time.perf_counter()
    server.post(COMPLETIONS, completion(prompt, max_tokens=1, cache_salt=salt))
    return time.perf_counter() - start


def above(one: list[float], other: list[float]) -> float:
    """How often a time of `one` is above one of `other`: 0.5 if they cannot be told apart."""
    pairs = [(a > b) + (a == b) / 2 for a in one for b in other]
    return sum(pairs) / len(pairs)


@pytest.mark.full
def test_times_tell_nothing() -> None:
    """A tenant who times guesses at another's prompt learns nothing; at its own, it would."""
    chance = random.Random(1)
    times: dict[str, list[float]] = {"new": [], "other's": [], "own": []}

    def prompt() -> list[int]:
        return [chance.randrange(3, 290) for _ in range(PROMPT)]

    model = TinyModel(max_num_seqs=4, num_gpu_blocks_override=600)
    with serving(model) as server:
        for _ in range(TRIALS):
            secret, own = prompt(), prompt()
            seconds(server, secret, "victim")
            seconds(server, own, "attacker")
            asked = [("new", prompt()), ("other's", secret), ("own", own)]
            chance.shuffle(asked)
            for kind, ids in asked:
                times[kind].append(seconds(server, ids, "attacker"))
    assert above(times["new"], times["own"]) > 0.9, "a hit would not be seen"
    assert abs(above(times["new"], times["other's"]) - 0.5) < 0.1
