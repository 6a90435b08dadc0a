"""Connections that mean no good: each is ended, and others are served meanwhile."""

from __future__ import annotations

import json
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from paxkv.server.limits import RequestLimits
from paxkv.server.settings import ServerSettings
from tests.regressions.test_metrics import Scrape, check_idle
from tests.server.tiny_process import TinyProcess
from tests.server.tiny_server import TinyServer, completion, serving

COMPLETIONS = "/v1/completions"
LIMITS = RequestLimits(max_header_seconds=0.5, max_reader_stall_seconds=0.5, max_body_seconds=1.0)


def request(body: Any, *more: str, path: str = COMPLETIONS) -> bytes:
    content = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(content)}", *more]
    return "\r\n".join([*head, "Content-Type: application/json", "", ""]).encode() + content


@contextmanager
def connected(server: TinyServer, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    with socket.socket() as connection:
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(10)
        connection.connect(("127.0.0.1", server.port))
        yield connection


def read_all(connection: socket.socket) -> bytes:
    got = b""
    try:
        while part := connection.recv(1 << 16):
            got += part
    except ConnectionError:
        pass
    return got


def wait_gone(server: TinyServer, seconds: float = 3.0) -> None:
    """Nobody is connected, nothing runs and no page is held, and the server answers."""
    server.wait_until(lambda: not server.server.server_state.connections, seconds)
    server.wait_until(lambda: not server.service.loop.calls, 1.0)
    server.wait_idle()
    check_idle(Scrape(server))
    assert server.post(COMPLETIONS, completion()).status == 200


@pytest.fixture(scope="module")
def patient() -> Iterator[TinyServer]:
    with serving(limits=LIMITS) as server:
        yield server


@pytest.fixture
def slow(patient: TinyServer) -> Iterator[TinyServer]:
    """A server whose answers take seconds."""
    patient.model.engine.runner.hooks.before_launch = lambda _: time.sleep(0.02)
    yield patient
    patient.model.engine.runner.hooks.before_launch = None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "extra", [b"\r\n", b"x", request(completion()), b"GET /health HTTP/1.1\r\n"]
)
@pytest.mark.parametrize("header", ["Connection: keep-alive", "Connection: close"])
def test_who_sends_more_and_goes_is_seen_to_go(
    slow: TinyServer, stream: bool, extra: bytes, header: str
) -> None:
    """Bytes after a request, such as the line end of old clients, must not blind the server."""
    with connected(slow) as connection:
        connection.sendall(request(completion(max_tokens=400, stream=stream), header))
        slow.wait_until(lambda: slow.on_engine(lambda e: e.stats().running) == 1)
        connection.sendall(extra)
        time.sleep(0.1)
    slow.wait_until(lambda: not slow.service.loop.calls, 1.0)
    wait_gone(slow)


def test_who_sends_ahead_without_end_is_cut(slow: TinyServer) -> None:
    with connected(slow) as connection:
        connection.sendall(request(completion(max_tokens=400)))
        slow.wait_until(lambda: bool(slow.service.loop.calls))
        with pytest.raises(ConnectionError):
            connection.sendall(b"x" * (64 << 20))
        wait_gone(slow)


def test_requests_sent_at_once_are_answered_in_order(patient: TinyServer) -> None:
    bodies = [completion("the cat", max_tokens=count) for count in (3, 9, 1)]
    with connected(patient) as connection:
        last = request(bodies[2], "Connection: close")
        connection.sendall(request(bodies[0]) + request(bodies[1]) + last)
        replies = read_all(connection).split(b"HTTP/1.1 200 OK")[1:]
    counts = [json.loads(r.split(b"\r\n\r\n")[1])["usage"]["completion_tokens"] for r in replies]
    assert counts == [3, 9, 1]
    wait_gone(patient)


@pytest.mark.parametrize("stream", [False, True])
def test_a_half_closed_connection_is_a_closed_one(slow: TinyServer, stream: bool) -> None:
    with connected(slow) as connection:
        connection.sendall(request(completion(max_tokens=400, stream=stream)))
        slow.wait_until(lambda: bool(slow.service.loop.calls))
        connection.shutdown(socket.SHUT_WR)
        slow.wait_until(lambda: not slow.service.loop.calls, 1.0)
        wait_gone(slow)


@pytest.mark.parametrize("state", ["waiting", "prompt", "decoding"])
@pytest.mark.parametrize("reset", [False, True])
def test_leaving_in_every_state(slow: TinyServer, state: str, reset: bool) -> None:
    """A reset is what a killed client sends; the longest prompt takes eight steps here."""
    with ExitStack() as held:
        if state == "waiting":
            for _ in range(4):
                other = held.enter_context(connected(slow))
                other.sendall(request(completion([7] * 9, max_tokens=400)))
            slow.wait_until(lambda: slow.on_engine(lambda e: e.stats().running) == 4)
        with connected(slow) as connection:
            count = {"waiting": 5, "prompt": 500, "decoding": 3}[state]
            body = completion([*range(5, 105)] * 5, max_tokens=300)
            body["prompt"] = body["prompt"][:count]
            connection.sendall(request({**body, "enable_prefix_caching": False}))

            def there() -> bool:
                def look(engine: Any) -> bool:
                    stats = engine.stats()
                    if state == "waiting":
                        return stats.waiting == 1
                    (sequence,) = engine.scheduler.running or [None]
                    if sequence is None:
                        return False
                    sampled = len(sequence.token_ids) - count
                    return sampled > 2 if state == "decoding" else sampled == 0

                return slow.on_engine(look)

            slow.wait_until(there)
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        left = 4 if state == "waiting" else 0
        slow.wait_until(lambda: len(slow.service.loop.calls) == left, 1.0)
        slow.wait_until(lambda: slow.on_engine(lambda e: e.stats().waiting) == 0, 1.0)
    wait_gone(slow)


@pytest.mark.parametrize("stream", [False, True])
def test_pages_are_free_a_step_after_the_client_went(patient: TinyServer, stream: bool) -> None:
    """The step that runs when it goes is the last, or the one after it if that had begun."""
    steps: list[int] = []

    def note(_: int) -> None:
        steps.append(patient.model.engine.block_manager.stats().used_blocks)
        time.sleep(0.3)

    patient.model.engine.runner.hooks.before_launch = note
    with connected(patient) as connection:
        connection.sendall(request(completion([9] * 50, max_tokens=400, stream=stream)))
        patient.wait_until(lambda: len(steps) == 4)
        gone = len(steps)
    patient.wait_until(lambda: not patient.on_engine(lambda engine: engine.has_work))
    patient.model.engine.runner.hooks.before_launch = None
    assert len(steps) - gone <= 2
    wait_gone(patient)


def test_a_body_that_nobody_reads_ends_the_connection() -> None:
    """Without a key the answer comes before the body; who goes on sending is not kept."""
    settings = ServerSettings(api_key=["key"])
    with serving(settings=settings, limits=LIMITS) as server, connected(server) as connection:
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())

        def is_cut() -> bool:
            try:
                connection.sendall(b"1\r\na\r\n")
            except ConnectionError:
                return True
            return False

        server.wait_until(is_cut, 5.0)
        assert not server.server.server_state.connections


def test_who_takes_nothing_does_not_keep_its_connection(patient: TinyServer) -> None:
    """Answers that fill every buffer on the way, then silence: also of answers that are whole."""
    for listening in patient.server.servers[0].sockets:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    small = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n"
    for sent in (small + b"\r\n", (small + b"\r\n") * 8, small + b"Connection: close\r\n\r\n"):
        with connected(patient, receive_buffer=4096) as connection:
            connection.sendall(sent)
            patient.wait_until(lambda: bool(patient.server.server_state.connections))
            patient.wait_until(lambda: not patient.server.server_state.connections, 3.0)
    wait_gone(patient)


GARBAGE = [
    b"\x00" * 64,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x7f" * 200,  # TLS
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / FTP/1.1\r\n\r\n",
    b"get\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nA: \x00\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost : x\r\n\r\n",
    b"GET ftp://elsewhere/v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET /%ff%00%0a/..;/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"BREW /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 60_000 + b"\r\nConnection: close\r\n\r\n",
    b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 9000 + b"Connection: close\r\n\r\n",
]


@pytest.mark.parametrize("sent", GARBAGE, ids=lambda sent: repr(sent[:30]))
def test_garbage_is_refused(patient: TinyServer, sent: bytes) -> None:
    with connected(patient) as connection:
        connection.sendall(sent)
        answer = read_all(connection)
    assert answer == b"" or 400 <= int(answer.split()[1]) < 500, answer[:200]
    wait_gone(patient)


def test_a_thousand_idle_connections_are_no_hindrance() -> None:
    """More of them than files may be open by default, half of them with half a request."""
    process = TinyProcess("--few-files")
    try:
        with ExitStack() as held:
            for number in range(600):
                connection = held.enter_context(
                    socket.create_connection(("127.0.0.1", process.port))
                )
                if number % 2:
                    connection.sendall(b"POST /v1/completions HTTP/1.1\r\n")
            for _ in range(3):
                assert process.client.post(COMPLETIONS, completion()).status == 200
        assert process.client.get("/health").status == 200
        process.send(signal.SIGTERM)
        assert process.wait() == 0
        assert "Traceback" not in process.log
    finally:
        process.close()


def test_connections_beyond_the_files_do_not_fill_the_log() -> None:
    process = TinyProcess("--never-more-files")
    try:
        with ExitStack() as held:
            for _ in range(300):
                address = ("127.0.0.1", process.port)
                held.enter_context(socket.create_connection(address))
            until = time.monotonic() + 10
            while "wait to be accepted" not in process.log:
                assert time.monotonic() < until, process.log[-2000:]
                time.sleep(0.05)
        assert process.client.get("/health").status == 200
        process.send(signal.SIGTERM)
        assert process.wait() == 0
        assert "Traceback" not in process.log
        assert process.log.count("\n") < 100
    finally:
        process.close()
