"""What the page is told: every page of the pool, and nothing that was said."""

from __future__ import annotations

import json
import re
import threading
import time
from base64 import b64decode
from typing import Any

import numpy as np
import pytest

from paxkv.memory import BlockManager
from paxkv.sampling.sampling_params import SamplingParams
from paxkv.server.dashboard import look as look_module
from paxkv.server.dashboard.files import FOLDER, PATHS
from paxkv.server.dashboard.look import MOST_WAITING, Look
from paxkv.server.settings import ServerSettings
from tests.server.full_pool import full_pool
from tests.server.tiny_server import TinyServer, chat, completion, lent_model, serving

KEY = "page-key-4711"


@pytest.fixture(autouse=True)
def _always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look_module, "FRESH_SECONDS", 0.0)


def naive_pool(memory: BlockManager, numbers: dict[int, int]) -> list[tuple[int, bool, bool]]:
    """Per page: the first owner's number or -1, whether shared, whether cached."""
    snapshot = memory.snapshot()
    cached = {page for page, _ in snapshot.index}
    holders: dict[int, list[int]] = {}
    for row, _, pages, _ in snapshot.rows:
        for page in pages:
            holders.setdefault(page, []).append(numbers[row])
    return [
        (
            min(holders.get(page, [-1])),
            len(holders.get(page, [])) > 1,
            page in cached,
        )
        for page in range(1, memory.num_blocks + 1)
    ]


def told_pool(state: dict[str, Any]) -> list[tuple[int, bool, bool]]:
    pool = state["pool"]
    owner = np.frombuffer(b64decode(pool["owner"]), "<u2").tolist()
    flags = np.frombuffer(b64decode(pool["flags"]), np.uint8).tolist()
    numbers = [-1, *(request["number"] for request in state["requests"])]
    return [(numbers[o], bool(f & 1), bool(f & 2)) for o, f in zip(owner, flags, strict=True)]


def numbers_of(server: TinyServer) -> dict[int, int]:
    return {s.row: s.request.arrival for s in server.model.engine.scheduler.running}


@pytest.mark.parametrize(("num_blocks", "num_requests"), [(1000, 24), (100_000, 200)])
def test_every_page_is_told(server: TinyServer, num_blocks: int, num_requests: int) -> None:
    with full_pool(server.model, num_blocks, num_requests) as memory:
        state = server.get("/page/state").json()
        expected = naive_pool(memory, numbers_of(server))
        stats = memory.stats()
    assert told_pool(state) == expected
    assert {shared for _, shared, _ in expected} == {True, False}
    assert {cached for owner, _, cached in expected if owner < 0} == {True, False}
    pool = state["pool"]
    assert (pool["pages"], pool["block_size"]) == (num_blocks, 4)
    assert pool["used"] == stats.used_blocks
    assert pool["shared"] == stats.shared_blocks
    assert pool["cached"] == stats.evictable_blocks


def test_a_block_table_on_demand(server: TinyServer) -> None:
    with full_pool(server.model, 1000, 24) as memory:
        assert server.get("/page/state").json()["table"] is None
        assert server.get("/page/state?request=999").json()["table"] is None
        sequence = server.model.engine.scheduler.running[2]
        number, row = sequence.request.arrival, sequence.row
        state = server.get(f"/page/state?request={number}").json()
        pages = memory.row_pages(row)
        assert state["table"] == {
            "number": number,
            "sequences": [
                {
                    "index": 0,
                    "tokens": int(memory.num_tokens[row]),
                    "blocks": len(pages),
                    "pages": pages.tolist(),
                    "references": memory.references[pages].tolist(),
                    "cached": [int(memory.cached[page]) for page in pages],
                }
            ],
        }
        (mine,) = [r for r in state["requests"] if r["number"] == number]
        assert mine["pages"] == len(pages)
    for bad in ("x", "-1", "1.5"):
        assert server.get(f"/page/state?request={bad}").status == 400


def test_children_share_an_owner(server: TinyServer) -> None:
    gate = threading.Event()
    server.model.engine.runner.hooks.before_launch = lambda plan: time.sleep(0.02)
    thread = threading.Thread(
        target=lambda: server.post("/v1/completions", completion("the cat sat", n=3, max_tokens=40))
    )
    thread.start()
    states: list[dict[str, Any]] = []

    def forked() -> bool:
        found = server.get("/page/state").json()
        requests = found["requests"]
        if requests and requests[0]["sequences"] == 3 and requests[0]["output"] > 9:
            states.append(found)
        return bool(states)

    server.wait_until(forked)
    gate.set()
    thread.join()
    server.model.engine.runner.hooks.before_launch = None
    (request,) = states[0]["requests"]
    mine = [page for page in told_pool(states[0]) if page[0] == request["number"]]
    assert len(mine) == request["pages"] == states[0]["pool"]["used"]
    assert any(shared for _, shared, _ in mine)
    assert request["state"] == "running"


def test_nothing_that_was_said_is_told(server: TinyServer) -> None:
    server.model.engine.runner.hooks.before_launch = lambda plan: time.sleep(0.02)
    spoken = "a-very-secret-word"
    body = completion(
        [31, 41, 59, 26] * 3, cache_salt="salt-" + spoken, user=spoken, stream=True, max_tokens=60
    )
    connections = [
        server.open("POST", "/v1/completions", body, {"X-Request-Id": spoken}),
        server.open("POST", "/v1/chat/completions", chat(spoken, stream=True, max_tokens=60)),
    ]
    states: list[Any] = []

    def both_run() -> bool:
        states[:] = [server.get("/page/state?request=0").json()]
        requests = states[0]["requests"]
        return len(requests) == 2 and all(r["output"] > 3 for r in requests)

    server.wait_until(both_run)
    number = states[0]["requests"][0]["number"]
    reply = server.get(f"/page/state?request={number}")
    for connection in connections:
        connection.close()
    assert spoken.encode() not in reply.content
    state = reply.json()
    assert set(state) == {"model", "version", "started", "time", "age", "draining", "pool",
                          "queue", "requests", "traffic", "table"}  # fmt: skip
    for request in state["requests"]:
        assert request.pop("state") == "running"
        assert set(request) == {"number", "prompt", "output", "cached", "preemptions", "age",
                                "sequences", "pages"}  # fmt: skip
        assert all(isinstance(value, int | float) for value in request.values())
    assert [31, 41, 59, 26] not in [
        state["table"]["sequences"][0][name][:4] for name in ("pages", "references", "cached")
    ]
    server.model.engine.runner.hooks.before_launch = None


def test_a_long_queue_is_counted_and_cut(server: TinyServer) -> None:
    gate = threading.Event()
    server.model.engine.runner.hooks.before_launch = lambda plan: gate.wait(0.03)
    many = MOST_WAITING + 30
    body = completion([[5 + i, 6] for i in range(many)], max_tokens=30)
    connection = server.open("POST", "/v1/completions", body)
    states: list[Any] = []

    def all_there() -> bool:
        states[:] = [server.get("/page/state").json()]
        queue = states[0]["queue"]
        return queue["running"] + queue["waiting"] == many

    server.wait_until(all_there)
    connection.close()
    gate.set()
    server.model.engine.runner.hooks.before_launch = None
    queue, requests = states[0]["queue"], states[0]["requests"]
    assert len(requests) == queue["running"] + MOST_WAITING
    assert [r["state"] for r in requests].count("waiting") == MOST_WAITING
    numbers = [r["number"] for r in requests]
    assert numbers == sorted(numbers)


def test_traffic_is_counted_once(server: TinyServer) -> None:
    before = server.get("/page/state").json()["traffic"]
    counts = []
    for body in (completion(max_tokens=7), completion(n=2, max_tokens=5, temperature=1)):
        counts.append(server.post("/v1/completions", body).json()["usage"])
    server.events("/v1/completions", completion(max_tokens=9))
    after = server.get("/page/state").json()["traffic"]
    assert after["generated"] - before["generated"] == 7 + 10 + 9
    assert after["num_first_tokens"] - before["num_first_tokens"] == 3
    now = time.monotonic()
    for when, seconds in after["first_tokens"][-3:]:
        assert now - 30 < when <= now
        assert 0 < seconds < 30
    assert after["computed"] > before["computed"]


def test_the_engine_is_looked_at_only_when_asked_and_seldom(
    server: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_module, "FRESH_SECONDS", 5.0)
    server.get("/page/state")
    looks: list[int] = []
    true_look = Look.of.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(Look, "of", lambda engine: looks.append(1) or true_look(Look, engine))
    server.post("/v1/completions", completion())
    assert looks == []
    monkeypatch.setattr(look_module, "FRESH_SECONDS", 0.0)
    server.get("/page/state")
    monkeypatch.setattr(look_module, "FRESH_SECONDS", 5.0)
    for _ in range(10):
        server.get("/page/state")
    assert looks == [1]


def test_a_long_step_holds_up_no_watcher(
    server: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look_module, "PATIENCE", 0.2)
    before = server.get("/page/state").json()["time"]
    gate = threading.Event()
    server.model.engine.runner.hooks.before_launch = lambda plan: gate.wait(20)
    connection = server.open("POST", "/v1/completions", completion(max_tokens=2))
    server.wait_until(lambda: server.service.loop.stalled_for > 0.05)
    start = time.monotonic()
    old = server.get("/page/state").json()
    assert old["time"] == before
    assert 0.2 <= old["age"] < 5  # which a reader can tell from a new one
    assert time.monotonic() - start < 5
    gate.set()
    server.model.engine.runner.hooks.before_launch = None
    connection.getresponse().read()
    new = server.get("/page/state").json()
    assert new["time"] > before
    assert new["age"] < 0.2
    assert new["started"] == old["started"]


def test_the_key_opens_the_state_and_the_files_say_nothing() -> None:
    settings = ServerSettings(api_key=[KEY], served_model_name=["secret-model-name"])
    with serving(settings=settings) as server:
        assert "/" in PATHS
        assert len(PATHS) == len(list(FOLDER.iterdir()))
        for path in PATHS:
            reply = server.get(path)
            assert reply.status == 200
            assert b"secret-model-name" not in reply.content
            assert "script-src 'self'" in reply.headers["content-security-policy"]
        reply = server.get("/page/state")
        assert reply.status == 401
        assert b"secret-model-name" not in reply.content
        opened = server.get("/page/state", headers={"Authorization": f"Bearer {KEY}"})
        assert opened.json()["model"] == "secret-model-name"
        assert server.get("/page/../page/state").status == 401
        assert server.get("/page/look.py").status == 401


def test_the_files_need_nothing_from_elsewhere() -> None:
    used = set()
    for file in FOLDER.iterdir():
        text = file.read_text(encoding="utf-8")
        assert re.findall(r"https?://(?!www\.w3\.org/2000/svg')", text) == [], file.name
        assert "innerHTML" not in text
        assert re.findall(r"""(?:from |href=|src=|call\()["'`]/""", text) == [], file.name
        found = re.findall(r'(?:from "\./|(?:href|src)="page/)([^"]+)"', text)
        used |= {f"/page/{name}" for name in found}
    assert used == PATHS - {"/"}


def test_the_state_is_sent_small() -> None:
    with full_pool(lent_model(), 100_000, 200), serving() as server:
        plain = server.get("/page/state")
        packed = server.get("/page/state", headers={"Accept-Encoding": "gzip"})
    assert json.loads(plain.content)["pool"]["pages"] == 100_000
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.content) < len(plain.content) / 4


def test_who_is_in_host_memory_and_who_waits(server: TinyServer) -> None:
    model = server.model
    with full_pool(model, 200, 8):
        scheduler = model.engine.scheduler
        away, queued = (
            model.input_processor.request([5, 6, 7], SamplingParams(max_tokens=4)) for _ in range(2)
        )
        away.arrival, queued.arrival = 90, 91
        away.sequences[0].swapped = object()
        scheduler.waiting[:] = [away.sequences[0], queued.sequences[0]]
        try:
            state = server.get("/page/state").json()
        finally:
            scheduler.waiting.clear()
    queue = state["queue"]
    assert (queue["waiting"], queue["swapped"]) == (1, 1)
    assert {r["number"]: r["state"] for r in state["requests"][-2:]} == {
        90: "swapped",
        91: "waiting",
    }
    assert [r["pages"] for r in state["requests"][-2:]] == [0, 0]


def test_a_look_at_a_large_pool_is_cheap(server: TinyServer) -> None:
    """It stands between two steps. The quickest of several says what the work itself takes."""

    def seconds(engine: Any) -> float:
        start = time.thread_time()
        Look.of(engine)
        return time.thread_time() - start

    with full_pool(server.model, 100_000, 200):
        assert min(server.on_engine(seconds) for _ in range(20)) < 0.01
