"""OpenTelemetry spans of requests, as they end, beneath the client's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from paxkv.server import app
from paxkv.server.settings import ServerSettings
from tests.server.tiny_server import NAME, TinyServer, completion, lent_model, serving

pytest.importorskip("opentelemetry.sdk")
SECRET = "the cat of the secret"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
PATH = "/v1/completions"


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TinyServer, Any]]:
    """A server, and an exporter that has all spans when the server has ended."""
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    monkeypatch.setattr(app, "otlp_exporter", lambda endpoint: exporter)
    settings = ServerSettings(otlp_traces_endpoint="http://127.0.0.1:4318/v1/traces")
    with serving(settings=settings) as server:
        yield server, exporter
        server.wait_idle()


def spans_of(server: TinyServer, exporter: Any) -> list[Any]:
    """Those that have ended; the exporter's thread is made to send them."""
    (observer,) = [o for o in server.service.loop.observers if hasattr(o, "_provider")]
    observer._provider.force_flush()
    return list(exporter.get_finished_spans())


def test_a_span_for_each_request(traced: tuple[TinyServer, Any]) -> None:
    server, exporter = traced
    header = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    body = completion(SECRET, n=2, max_tokens=5, temperature=0.5)
    usage = server.post(PATH, body, headers=header).json()["usage"]
    server.post(PATH, completion([SECRET, "two"], max_tokens=3))
    first, *others = spans_of(server, exporter)
    assert (first.name, first.kind.name) == ("llm_request", "SERVER")
    assert f"{first.context.trace_id:032x}" == TRACE
    assert f"{first.parent.span_id:016x}" == PARENT
    assert len(others) == 2
    assert all(span.parent is None for span in others)
    found = dict(first.attributes)
    assert found["gen_ai.response.model"] == NAME
    assert found["gen_ai.usage.prompt_tokens"] == usage["prompt_tokens"]
    assert found["gen_ai.usage.completion_tokens"] == usage["completion_tokens"] == 10
    assert (found["gen_ai.request.n"], found["gen_ai.request.temperature"]) == (2, 0.5)
    assert found["gen_ai.response.finish_reasons"] == ("length",)
    seconds = (first.end_time - first.start_time) / 1e9
    assert seconds == pytest.approx(found["gen_ai.latency.e2e"], abs=1e-3)
    first_token = found["gen_ai.latency.time_to_first_token"]
    queue = found["gen_ai.latency.time_in_queue"]
    assert 0 <= queue <= first_token <= found["gen_ai.latency.e2e"] < 30
    assert SECRET not in str([span.to_json() for span in (first, *others)])


def test_spans_of_those_who_leave_and_fail(traced: tuple[TinyServer, Any]) -> None:
    server, exporter = traced

    def fail(_: Any) -> None:
        raise RuntimeError("planted")

    connection = server.open("POST", PATH, completion(max_tokens=400))
    server.wait_until(lambda: bool(server.service.loop.calls))
    connection.close()
    server.wait_until(lambda: not server.service.loop.calls)
    server.model.engine.runner.hooks.before_launch = fail
    assert server.post(PATH, completion()).status == 500
    server.model.engine.runner.hooks.before_launch = None
    left, failed = spans_of(server, exporter)
    assert left.attributes["gen_ai.response.finish_reasons"] == ("abort",)
    assert left.status.is_ok
    assert failed.attributes["gen_ai.response.finish_reasons"] == ("error",)
    assert not failed.status.is_ok


def test_nothing_is_traced_unless_asked_for() -> None:
    with serving(lent_model()) as server:
        assert not [o for o in server.service.loop.observers if hasattr(o, "_provider")]
    with pytest.raises(ValueError, match="otlp_traces_endpoint"):
        ServerSettings(otlp_traces_endpoint="localhost:4318")
