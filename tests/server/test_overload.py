"""More work than the server takes: refusals, waits, deadlines, slow readers."""

from __future__ import annotations

import json
import socket
import threading
import time
from functools import cache
from typing import Any

import pytest

from paxkv.server.limits import RequestLimits
from paxkv.server.settings import ServerSettings
from tests.server.tiny_server import Reply, TinyModel, TinyServer, chat, completion, serving

COMPLETIONS = "/v1/completions"
LONG = {"max_tokens": 400, "stream": True}


def slow(server: TinyServer, seconds: float) -> None:
    server.model.engine.runner.hooks.before_launch = lambda _: time.sleep(seconds)


def occupy(server: TinyServer) -> list[Any]:
    """Streams that hold every row of the engine."""
    connections = []
    for count in range(1, server.model.engine.config.max_num_seqs + 1):
        connections.append(server.open("POST", COMPLETIONS, completion(**LONG)))
        server.wait_until(lambda n=count: server.on_engine(lambda e: e.stats().running) == n)
    return connections


def test_a_full_queue_is_503_with_retry_after() -> None:
    settings = ServerSettings(max_num_queued_reqs=2, max_num_queued_tokens=1000)
    with serving(settings=settings) as server:
        slow(server, 0.01)
        held = occupy(server)
        held += [server.open("POST", COMPLETIONS, completion(**LONG)) for _ in range(2)]
        server.wait_until(lambda: server.service.loop.backlog.num_requests == 2)
        for body in (completion(), completion(stream=True)):
            reply = server.post(COMPLETIONS, body)
            assert (reply.status, reply.error["code"]) == (503, "queue_full")
            assert int(reply.headers["retry-after"]) >= 1
            assert "max_num_queued_reqs=2" in reply.error["message"]
        held.pop().close()
        server.wait_until(lambda: server.service.loop.backlog.num_requests == 1)
        reply = server.post(COMPLETIONS, completion([[5] * 400, [6] * 400]))
        assert (reply.status, reply.error["code"]) == (503, "queue_full")
        for connection in held:
            connection.close()
        server.wait_until(lambda: not server.service.loop.calls)
        # By itself, what is more than the limit may wait.
        assert server.post(COMPLETIONS, completion([[5] * 400] * 3)).status == 200
        server.wait_idle()


@cache
def two_slots() -> TinyModel:
    return TinyModel(max_num_seqs=2, num_gpu_blocks_override=600)


@pytest.mark.parametrize("n, admitted", [(1, 6), (2, 3)])
def test_a_burst_fills_the_slots_and_the_queue_exactly(n: int, admitted: int) -> None:
    """Kind: a limit that counts other things than it says (requests, not sequences; as waiting
    what starts at once)."""
    gate = threading.Event()
    with serving(two_slots(), ServerSettings(max_num_queued_reqs=4)) as server:
        server.model.engine.runner.hooks.before_launch = lambda _: gate.wait(30)
        body = completion(temperature=1, n=n)
        burst = [server.open("POST", COMPLETIONS, body) for _ in range(40)]
        server.wait_until(lambda: server.server.server_state.total_requests >= 40 - admitted)
        gate.set()
        statuses = [connection.getresponse().status for connection in burst]
        for connection in burst:
            connection.close()
        assert (statuses.count(200), statuses.count(503)) == (admitted, 40 - admitted)
        server.wait_idle()


def test_a_queue_of_tokens_is_bounded_too() -> None:
    settings = ServerSettings(max_num_queued_tokens=500)
    with serving(settings=settings) as server:
        slow(server, 0.01)
        held = occupy(server)
        held.append(server.open("POST", COMPLETIONS, completion([5] * 300, **LONG)))
        server.wait_until(lambda: server.service.loop.backlog.num_tokens == 300)
        reply = server.post(COMPLETIONS, completion([5] * 300))
        assert (reply.status, reply.error["code"]) == (503, "queue_full")
        assert "max_num_queued_tokens=500" in reply.error["message"]
        for connection in held:
            connection.close()
        server.wait_until(lambda: not server.service.loop.calls)
        server.wait_idle()


@pytest.mark.parametrize("streaming", [False, True])
def test_nobody_waits_longer_than_the_limit(streaming: bool) -> None:
    with serving(settings=ServerSettings(max_queue_wait=0.3)) as server:
        slow(server, 0.01)
        held = occupy(server)
        start = time.monotonic()
        reply = server.post(COMPLETIONS, completion(stream=streaming))
        assert (reply.status, reply.error["code"]) == (503, "queue_wait")
        assert 0.3 <= time.monotonic() - start < 1.5
        assert int(reply.headers["retry-after"]) >= 1
        # Those who run have no such limit.
        time.sleep(0.2)
        assert len(server.service.loop.calls) == len(held)
        for connection in held:
            connection.close()
        server.wait_until(lambda: not server.service.loop.calls)
        server.wait_idle()


def test_deadlines() -> None:
    with serving(limits=RequestLimits(max_request_seconds=1.0)) as server:
        assert server.post(COMPLETIONS, completion(timeout=30)).status == 200
        slow(server, 0.02)
        for fields in ({"timeout": 0.3}, {"timeout": 30}):
            reply = server.post(COMPLETIONS, completion(max_tokens=400, **fields))
            assert (reply.status, reply.error["type"]) == (408, "timeout_error")
        server.wait_idle()
        events = server.events(COMPLETIONS, completion(max_tokens=400, timeout=0.3))
        assert len(events) > 3
        assert events[-2]["error"]["type"] == "timeout_error"
        server.wait_idle()


def test_a_slow_reader_stalls_nobody_and_is_let_go() -> None:
    """It reads nothing of a stream larger than all buffers on the way."""
    body = completion([5] * 10, n=3, max_tokens=200, stream=True, logprobs=20)
    with serving(limits=RequestLimits(max_reader_stall_seconds=1.0)) as server:
        for listening in server.server.servers[0].sockets:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        content = json.dumps(body).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n"
        connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + content)
        server.wait_until(lambda: server.on_engine(lambda e: e.has_work))
        times = []
        while server.on_engine(lambda e: e.has_work):
            start = time.monotonic()
            assert server.post(COMPLETIONS, completion(max_tokens=2)).status == 200
            times.append(time.monotonic() - start)
        assert len(times) > 5
        # The first may compile, and the machine may be busy with other things for a moment.
        assert sum(seconds > 1.0 for seconds in times) <= 2
        server.wait_until(lambda: not server.service.loop.calls, seconds=5)
        server.wait_idle()
        connection.close()


def test_all_streams_end_whatever_else_happens() -> None:
    """A crowd of streams, some of which go away, some of which are refused: the rest is right."""
    with serving() as server:
        want = server.post(COMPLETIONS, completion(max_tokens=40)).json()["choices"][0]["text"]
        texts: list[str] = []
        lock = threading.Lock()

        def read(number: int) -> None:
            if number % 4 == 1:
                connection = server.open("POST", COMPLETIONS, completion(**LONG))
                time.sleep(0.01 * (number % 7))
                connection.close()
            elif number % 4 == 2:
                assert server.post(COMPLETIONS, completion(n=0)).status == 400
            else:
                events = server.events(COMPLETIONS, completion(max_tokens=40))
                with lock:
                    texts.append("".join(e["choices"][0]["text"] for e in events[:-1]))

        threads = [threading.Thread(target=read, args=(number,)) for number in range(48)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert texts == [want] * 24
        server.wait_until(lambda: not server.service.loop.calls)
        server.wait_idle()


def test_bodies_that_are_held_are_bounded() -> None:
    """Those of running requests and those that are on their way, but not those of before."""
    with serving(limits=RequestLimits(max_held_bytes=9000)) as server:
        big = completion("a", x="y" * 3000)
        for _ in range(4):
            assert server.post(COMPLETIONS, big).status == 200
        slow(server, 0.02)
        held = [server.open("POST", COMPLETIONS, {**big, **LONG}) for _ in range(2)]
        server.wait_until(lambda: len(server.service.loop.calls) == 2)
        part = socket.create_connection(("127.0.0.1", server.port))
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n\r\n"
        part.sendall(head.encode() + b" " * 2000)
        reply = server.post(COMPLETIONS, big)
        assert (reply.status, reply.error["code"]) == (503, "bodies_full")
        assert int(reply.headers["retry-after"]) >= 1
        part.close()
        held.pop().close()
        server.wait_until(lambda: len(server.service.loop.calls) == 1)
        assert server.post(COMPLETIONS, big).status == 200
        held.pop().close()
        server.wait_until(lambda: not server.service.loop.calls)
        server.wait_idle()


def test_admin_calls_among_streams() -> None:
    """Between the steps of others: figures, and a prefix cache that is forgotten often."""
    admin = {"Authorization": "Bearer admin"}
    with serving(settings=ServerSettings(admin_key=["admin"])) as server:
        body = completion([7] * 40, max_tokens=60)
        want = server.post(COMPLETIONS, body).json()["choices"][0]["text"]
        found: list[Any] = []

        def read() -> None:
            events = server.events(COMPLETIONS, body)
            found.append("".join(e["choices"][0]["text"] for e in events[:-1]))

        def administer() -> None:
            for _ in range(15):
                stats = server.get("/admin/stats", headers=admin).json()
                assert 0 <= stats["free_blocks"] <= stats["num_blocks"]
                reply = server.post("/admin/reset_prefix_cache", {}, headers=admin)
                found.append(reply.status)

        threads = [threading.Thread(target=work) for work in [read, administer] * 6]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(map(str, found)) == sorted([want] * 6 + ["200"] * 90)
        server.wait_idle()


def test_priorities_reach_the_queue() -> None:
    with serving() as server:
        slow(server, 0.01)
        held = occupy(server)
        order: list[int] = []

        def ask(priority: int) -> Reply:
            reply = server.post("/v1/chat/completions", chat(priority=priority, max_tokens=1))
            order.append(priority)
            return reply

        threads = [threading.Thread(target=ask, args=(priority,)) for priority in (1, 3, 2)]
        for number, thread in enumerate(threads, start=1):
            thread.start()
            server.wait_until(lambda n=number: server.service.loop.backlog.num_requests == n)
        held[0].close()
        for thread in threads:
            thread.join()
        assert order == [3, 2, 1]
        server.wait_idle()
