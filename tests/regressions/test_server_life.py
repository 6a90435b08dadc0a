"""Bug bank: a server's life, from a dead engine to a clean end."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest

from paxkv.server.limits import RequestLimits
from paxkv.server.running import listen
from paxkv.server.settings import ServerSettings
from tests.server.tiny_process import TinyProcess
from tests.server.tiny_server import TinyModel, chat, completion, joined, serving

COMPLETIONS = "/v1/completions"


class EngineKilled(BaseException):
    pass


def kill(num_steps: int) -> None:
    raise EngineKilled


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_sv_01_a_dead_engine_is_told_at_once() -> None:
    with serving(TinyModel()) as server:
        connection = server.open("POST", COMPLETIONS, completion(stream=True, max_tokens=500))
        stream = connection.getresponse()
        stream.readline()
        server.model.engine.runner.hooks.before_launch = kill
        start = time.monotonic()
        tail = stream.read().decode()
        assert time.monotonic() - start < 2
        assert '"error"' in tail
        assert "engine_dead" in tail
        assert tail.endswith("data: [DONE]\n\n")
        assert server.get("/health").status == 503
        reply = server.post(COMPLETIONS, completion())
        assert (reply.status, reply.error["code"]) == (503, "engine_dead")
        server.wait_until(lambda: server.server.should_exit)
        assert server.server.exit_code == 1


def test_sv_01_a_failed_step_ends_its_requests_alone() -> None:
    with serving() as server:
        hooks = server.model.engine.runner.hooks

        def fail(num_steps: int) -> None:
            hooks.before_launch = None
            raise RuntimeError("injected")

        hooks.before_launch = fail
        reply = server.post(COMPLETIONS, completion())
        assert reply.status == 500
        assert server.post(COMPLETIONS, completion()).status == 200
        assert server.get("/health").status == 200
        server.wait_idle()


def test_sv_01_a_stuck_engine_is_not_healthy() -> None:
    with serving(settings=ServerSettings(health_stall_seconds=0.2)) as server:
        assert server.post(COMPLETIONS, completion()).status == 200
        server.model.engine.runner.hooks.before_launch = lambda _: time.sleep(1.0)
        connection = server.open("POST", COMPLETIONS, completion(max_tokens=1))
        time.sleep(0.6)
        reply = server.get("/health")
        assert (reply.status, reply.error["code"]) == (503, "engine_stuck")
        assert connection.getresponse().status == 200
        server.model.engine.runner.hooks.before_launch = None
        assert server.get("/health").status == 200


def test_sv_03_running_answers_end_and_new_requests_are_refused() -> None:
    with serving() as server:
        whole = server.post(COMPLETIONS, completion(max_tokens=200)).json()["choices"][0]["text"]
        server.model.engine.runner.hooks.before_launch = lambda _: time.sleep(0.005)
        stream = server.open("POST", COMPLETIONS, completion(stream=True, max_tokens=200))
        response = stream.getresponse()
        first = response.readline()
        server.server.handle_exit(signal.SIGTERM, None)
        server.wait_until(lambda: server.service.loop.draining)
        for reply in (server.post(COMPLETIONS, completion()), server.get("/health")):
            assert (reply.status, reply.error["code"]) == (503, "shutting_down")
            assert int(reply.headers["retry-after"]) > 0
        text = (first + response.read()).decode()
        events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
        assert events[-1] == "[DONE]"
        found = joined([*map(json.loads, events[:-1]), "[DONE]"])[0]
        assert (found["text"], found["finish_reason"]) == (whole, "length")
        server.wait_until(lambda: server.server.should_exit)
    assert server.server.exit_code == 0


def test_sv_03_what_does_not_end_within_the_grace_is_told() -> None:
    with serving(settings=ServerSettings(shutdown_grace=0.2)) as server:
        server.model.engine.runner.hooks.before_launch = lambda _: time.sleep(0.02)
        connection = server.open("POST", COMPLETIONS, completion(max_tokens=500))
        server.wait_until(lambda: server.on_engine(lambda e: e.has_work))
        server.server.handle_exit(signal.SIGTERM, None)
        response = connection.getresponse()
        assert response.status == 503
        assert b"shutting_down" in response.read()


def test_sv_03_who_waits_for_a_grammar_is_told() -> None:
    with serving(limits=RequestLimits(max_grammar_seconds=60)) as server:
        endless = {"allOf": [{"type": "string", "pattern": f".*{n}.*"} for n in range(99)]}
        held = [
            server.open(
                "POST", "/v1/chat/completions", chat(guided_json={**endless, "title": name})
            )
            for name in ("runs", "waits")
        ]
        server.wait_until(lambda: len(server.service.grammar_queue._waiting) == 2)
        server.server.handle_exit(signal.SIGTERM, None)
        for connection in held:
            response = connection.getresponse()
            assert (response.status, response.getheader("content-type")) == (
                503,
                "application/json",
            )
            assert json.load(response)["error"]["code"] == "shutting_down"


def test_sv_03_what_is_cancelled_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """A body that does not come within uvicorn's own grace."""
    with serving() as server:
        server.server.config.timeout_graceful_shutdown = 0.2  # type: ignore[assignment]
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            server.wait_until(lambda: bool(server.server.server_state.tasks))
            server.server.handle_exit(signal.SIGTERM, None)
            answer = b""
            while more := connection.recv(65536):
                answer += more
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b'"shutting_down"' in answer
    assert not [record for record in caplog.records if record.exc_info]


def told(response: http.client.HTTPResponse, events: int = 10**6) -> str:
    """The text of a stream as far as it came, `[DONE]` at its end if it was told so."""
    text = ""
    with suppress(http.client.IncompleteRead, ConnectionError):
        while events and (line := response.readline()):
            if line == b"data: [DONE]\n":
                return text + "[DONE]"
            if line.startswith(b"data: "):
                text += json.loads(line[6:])["choices"][0]["text"]
                events -= 1
    return text


def leaves_nothing(folder: Path) -> bool:
    return not [path for path in folder.rglob("*") if path.is_file()]


def children(pid: int) -> list[int]:
    """Processes whose parent it is."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rsplit(")", 1)[1].split()[1]) == pid:
                found.append(int(stat.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGKILL])
def test_sv_03_no_child_outlives_the_server(kind: signal.Signals) -> None:
    """The process that tries grammars ends too, even in the middle of one that has no end."""
    process = TinyProcess()
    try:
        assert process.client.post("/v1/chat/completions", chat(guided_regex="a+")).status == 200
        endless = {"allOf": [{"type": "string", "pattern": f".*{n}.*"} for n in range(99)]}
        held = process.client.open("POST", "/v1/chat/completions", chat(guided_json=endless))
        time.sleep(0.3)
        left = children(process.pid)
        assert left
        process.send(kind)
        process.wait()
        until = time.monotonic() + 5
        while any(Path(f"/proc/{pid}").exists() for pid in left):
            assert time.monotonic() < until
            time.sleep(0.05)
        held.close()
    finally:
        process.close()


def test_sv_03_signals_of_a_process(tmp_path: Path) -> None:
    """kill -9 leaves the port free and no files, and what was told of an answer stays true;
    SIGTERM lets a stream end, and the process ends with 0."""
    body = completion(stream=True, max_tokens=400)
    first = TinyProcess(temporary=tmp_path)
    try:
        stream = first.client.open("POST", COMPLETIONS, body).getresponse()
        start = told(stream, events=5)
        first.send(signal.SIGKILL)
        start += told(stream)
        assert first.wait() == -signal.SIGKILL
        assert leaves_nothing(tmp_path)
        second = TinyProcess(port=first.port, temporary=tmp_path)
    finally:
        first.close()
    try:
        whole = told(second.client.open("POST", COMPLETIONS, body).getresponse())
        assert whole.endswith("[DONE]")
        assert whole.startswith(start)
        assert 0 < len(start) < len(whole) - len("[DONE]")
        stream = second.client.open("POST", COMPLETIONS, {**body, "max_tokens": 60}).getresponse()
        begun = told(stream, events=1)
        second.send(signal.SIGTERM)
        ended = begun + told(stream)
        assert second.wait() == 0
        assert ended.endswith("[DONE]")
        assert whole.startswith(ended.removesuffix("[DONE]"))
        assert "Traceback" not in second.log
        assert leaves_nothing(tmp_path)
    finally:
        second.close()


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGKILL])
def test_sv_03_a_signal_while_starting(kind: signal.Signals, tmp_path: Path) -> None:
    process = TinyProcess(ready=False, temporary=tmp_path)
    try:
        process.send(kind)
        start = time.monotonic()
        assert process.wait() == -kind
        assert time.monotonic() - start < 5
        listen("127.0.0.1", process.port).close()
        assert leaves_nothing(tmp_path)
    finally:
        process.close()


def test_sv_03_killed_while_it_starts_it_starts_again(tmp_path: Path) -> None:
    """On the same port, with the same folder of compiled programs."""
    process = TinyProcess(ready=False, temporary=tmp_path)
    try:
        time.sleep(2)  # weights, traces, the first programs
        process.send(signal.SIGKILL)
        process.wait()
        again = TinyProcess(port=process.port, temporary=tmp_path)
    finally:
        process.close()
    try:
        assert again.client.post("/v1/chat/completions", chat()).status == 200
        assert leaves_nothing(tmp_path)
    finally:
        again.close()


def test_sv_03_a_second_signal_ends_at_once() -> None:
    process = TinyProcess("--slow")
    try:
        held = process.client.open("POST", COMPLETIONS, completion(max_tokens=500))
        time.sleep(0.3)
        process.send(signal.SIGINT)
        time.sleep(0.3)
        assert process.client.get("/health").status == 503
        process.send(signal.SIGINT)
        assert process.wait() == -signal.SIGINT
        held.close()
    finally:
        process.close()


def test_a_port_in_use_is_said_before_anything_is_loaded() -> None:
    from paxkv.cli.main import main

    with serving() as server:
        assert main(["serve", "--model", "no-such-model", "--port", str(server.port)]) == 2


def test_of_two_started_together_one_has_the_port() -> None:
    """Before either has read a model; who comes meanwhile is answered when it is ready."""
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ValueError, match=f"port={port}"):
            listen("127.0.0.1", port)
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            first.accept()[0].close()
