"""The OpenAPI document, and what follows from it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from paxkv.server.schemas import SAMPLING_FIELDS
from tests.server.tiny_server import TinyServer

schemathesis = pytest.importorskip("schemathesis")

EXAMPLES = 6
ROUTES = {
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/responses/{response_id}",
    "/v1/models",
    "/v1/models/{name}",
    "/generate",
    "/tokenize",
    "/detokenize",
    "/health",
    "/version",
    "/metrics",
}


def test_the_document_names_routes_and_fields(server: TinyServer) -> None:
    document = server.get("/openapi.json").json()
    assert set(document["paths"]) >= ROUTES
    schemas = document["components"]["schemas"]
    for body in ("CompletionBody", "ChatBody"):
        assert set(schemas[body]["properties"]) >= {*SAMPLING_FIELDS, "stream", "cache_salt"}
    assert "larger number runs first" in document["info"]["description"]
    assert schemas["CompletionBody"]["required"] == ["prompt"]


def attack(server: TinyServer, examples: int) -> None:
    url = f"http://127.0.0.1:{server.port}"
    document = schemathesis.openapi.from_url(f"{url}/openapi.json")
    seen = set()
    for result in document.get_all_operations():
        operation = result.ok()
        seen.add(operation.path)
        modes = list(schemathesis.GenerationMode)
        if not list(operation.body):  # nothing about it can be wrong
            modes.remove(schemathesis.GenerationMode.NEGATIVE)
        for mode in modes:

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
            def run(case: Any) -> None:
                reply = case.call(timeout=30)
                assert reply.status_code < 500, (case.body, reply.text[:500])
                if reply.status_code >= 400 and case.method != "HEAD":
                    assert reply.json()["error"]["message"]

            run()
    assert seen >= ROUTES


def test_schemathesis_finds_no_fault(server: TinyServer) -> None:
    attack(server, EXAMPLES)


@pytest.mark.full
def test_schemathesis_at_length(server: TinyServer) -> None:
    attack(server, 300)
