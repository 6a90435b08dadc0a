"""Bug bank: a server's life, from a dead engine to a clean end."""

from __future__ import annotations

import json
import signal
import time

import pytest

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


def test_sv_03_signals_of_a_process() -> None:
    """kill -9 leaves the port free; SIGTERM lets a stream end, and the process ends with 0."""
    first = TinyProcess()
    try:
        stream = first.client.open("POST", COMPLETIONS, completion(stream=True, max_tokens=400))
        stream.getresponse().readline()
        first.send(signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL
        second = TinyProcess(port=first.port)
    finally:
        first.close()
    try:
        assert second.client.post("/v1/chat/completions", chat()).status == 200
        stream = second.client.open("POST", COMPLETIONS, completion(stream=True, max_tokens=60))
        response = stream.getresponse()
        response.readline()
        second.send(signal.SIGTERM)
        tail = response.read().decode()
        assert '"finish_reason":"length"' in tail
        assert tail.endswith("data: [DONE]\n\n")
        assert second.wait() == 0
        assert "Traceback" not in second.log
    finally:
        second.close()


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGKILL])
def test_sv_03_a_signal_while_starting(kind: signal.Signals) -> None:
    process = TinyProcess(ready=False)
    try:
        process.send(kind)
        start = time.monotonic()
        assert process.wait() == -kind
        assert time.monotonic() - start < 5
        listen("127.0.0.1", process.port).close()
    finally:
        process.close()


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
