"""Limits of size and time of a connection, CORS, and what is logged."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import socket
import time
from pathlib import Path

import pytest

from paxkv.server.limits import RequestLimits
from paxkv.server.middleware.request_log import LogFormatter
from paxkv.server.settings import ServerSettings
from tests.server.tiny_server import TinyServer, chat, completion, serving

COMPLETIONS = "/v1/completions"


def raw(server: TinyServer, *parts: bytes, pause: float = 0.0) -> bytes:
    """What comes back for bytes sent one part after the other, until the connection closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)
        answer = b""
        try:
            while more := connection.recv(65536):
                answer += more
        except ConnectionResetError:
            pass
        return answer


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def test_bodies_are_bounded() -> None:
    limits = RequestLimits(max_body_bytes=2000, max_body_seconds=0.5)
    with serving(limits=limits) as server:
        assert server.post(COMPLETIONS, completion("a" * 1500, max_tokens=1)).status == 400
        reply = server.post(COMPLETIONS, completion("a" * 2500))
        assert reply.status == 413
        assert "max_body_bytes=2000" in reply.error["message"]
        assert b" 413 " in raw(server, HEAD + b"Content-Length: 99999999999\r\n\r\n")
        chunk = b"400\r\n" + b"a" * 1024 + b"\r\n"
        assert b" 413 " in raw(server, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 3)
        start = time.monotonic()
        assert b" 408 " in raw(server, HEAD + b"Content-Length: 500\r\n\r\n", b"{")
        assert time.monotonic() - start < 5
        assert server.post(COMPLETIONS, completion()).status == 200
        server.wait_idle()


def test_headers_are_bounded() -> None:
    limits = RequestLimits(max_header_bytes=4096, max_header_seconds=0.4)
    with serving(limits=limits) as server:
        answer = raw(server, HEAD + b"X: " + b"a" * 8192)
        assert answer.startswith(b"HTTP/1.1 431 ")
        error = json.loads(answer.split(b"\r\n\r\n")[1])["error"]
        assert "max_header_bytes=4096" in error["message"]
        start = time.monotonic()
        assert raw(server) == b""
        assert raw(server, b"GET /health HTTP/1.1\r\n", b"a: b\r\n", b"c: d\r\n", pause=0.2) == b""
        good = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        # The second request of a connection has no more time than the first.
        answer = raw(server, good, b"GET /hea", pause=0.1)
        assert answer.startswith(b"HTTP/1.1 200")
        assert time.monotonic() - start < 5
        # Those that wait for an answer, or for the next request, are not meant.
        server.model.engine.runner.hooks.before_launch = lambda _: time.sleep(0.2)
        assert server.post(COMPLETIONS, completion()).status == 200
        server.wait_idle()


def test_an_upgrade_is_ignored(caplog: pytest.LogCaptureFixture, server: TinyServer) -> None:
    """As Java's HttpClient and `curl --http2` ask for it."""
    wanted = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAA"}
    assert server.get("/v1/models", headers=wanted).status == 200
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_connections_are_bounded() -> None:
    with serving(limits=RequestLimits(max_connections=3)) as server:
        address = ("127.0.0.1", server.port)
        held = [socket.create_connection(address, timeout=5) for _ in range(3)]
        server.wait_until(lambda: len(server.server.server_state.connections) == 3)
        assert raw(server) == b""
        for connection in held:
            connection.close()
        server.wait_until(lambda: not server.server.server_state.connections)
        assert server.get("/health").status == 200


def test_cors_is_off_unless_asked_for(server: TinyServer) -> None:
    preflight = {"Origin": "http://a.example", "Access-Control-Request-Method": "POST"}
    allow, expose = "access-control-allow-origin", "access-control-expose-headers"
    reply = server.call("OPTIONS", COMPLETIONS, headers=preflight)
    assert (reply.status, reply.headers["allow"]) == (405, "POST")
    assert allow not in reply.headers
    assert allow not in server.get("/health", headers=preflight).headers
    settings = ServerSettings(allowed_origins=["http://a.example"], api_key=["key"])
    with serving(settings=settings) as other:
        reply = other.call("OPTIONS", COMPLETIONS, headers=preflight)
        assert (reply.status, reply.headers[allow]) == (200, "http://a.example")
        assert other.get("/health", headers=preflight).headers[allow] == "http://a.example"
        openai = {**preflight, "Access-Control-Request-Headers": "authorization,x-stainless-lang"}
        assert other.call("OPTIONS", COMPLETIONS, headers=openai).status == 200
        assert "X-Request-Id" in other.get("/health", headers=preflight).headers[expose]
        elsewhere = {**preflight, "Origin": "http://b.example"}
        assert allow not in other.call("OPTIONS", COMPLETIONS, headers=elsewhere).headers


def _status(record: logging.LogRecord) -> int | None:
    return getattr(record, "fields", {}).get("status")


def test_request_ids_and_log_lines(caplog: pytest.LogCaptureFixture, server: TinyServer) -> None:
    caplog.set_level(logging.INFO)
    known = {"X-Request-Id": "abc-123"}
    assert server.get("/v1/models", headers=known).headers["x-request-id"] == "abc-123"
    odd = {"X-Request-Id": 'a"b\\' + "c" * 100}
    assert len(server.get("/v1/models", headers=odd).headers["x-request-id"]) == 32
    server.post("/v1/chat/completions?q=hidden", chat("a private matter", api_key="hidden", n=0))
    server.wait_until(lambda: any(_status(record) == 400 for record in caplog.records))
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogFormatter(as_json=True))
    for record in caplog.records:
        handler.emit(record)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    (first,) = [line for line in lines if line.get("request_id") == "abc-123"]
    assert (first["method"], first["path"], first["status"]) == ("GET", "/v1/models", 200)
    assert "private" not in stream.getvalue()
    assert "hidden" not in stream.getvalue()


def test_a_fault_has_its_status_and_id(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, server: TinyServer
) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr(server.service, "check_model", fail)
    caplog.set_level(logging.INFO)
    reply = server.get("/v1/models/tiny", headers={"X-Request-Id": "fault-1"})
    assert (reply.status, reply.error["type"]) == (500, "server_error")
    assert reply.headers["x-request-id"] == "fault-1"
    server.wait_until(lambda: any(_status(record) == 500 for record in caplog.records))
    (told,) = [record for record in caplog.records if record.exc_info]
    assert "injected" in str(told.exc_info)


@pytest.mark.parametrize("bad", [0, -1, "x", True])
def test_settings_are_checked(bad: object) -> None:
    with pytest.raises(ValueError, match="max_prompts"):
        RequestLimits(max_prompts=bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_num_queued_reqs"):
        ServerSettings(max_num_queued_reqs=bad)  # type: ignore[arg-type]


def test_the_documented_limits_are_the_limits() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "server.md").read_text()
    for field in dataclasses.fields(RequestLimits):
        assert f"| `{field.name}` | {field.default:.0f} |" in text, field.name
    for name in ("max_num_queued_reqs", "max_num_queued_tokens", "max_queue_wait"):
        assert f"`{name}` ({getattr(ServerSettings, name):.0f}" in text
