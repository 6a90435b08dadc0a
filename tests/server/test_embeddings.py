"""Embeddings over HTTP: the engine's vectors, in OpenAI's form."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from paxkv import PoolingParams
from tests.regressions.test_metrics import Scrape
from tests.server.tiny_server import MODEL, NAME, TinyServer, serving

COUNTED = ("prompt_tokens_total", "e2e_request_latency_seconds_count")
NOT_COUNTED = (
    "generation_tokens_total",
    "time_to_first_token_seconds_count",
    "request_generation_tokens_count",
    "request_params_max_tokens_count",
)
TEXTS = ["the cat", "the cat sat on the mat"]


@pytest.fixture(scope="module")
def server() -> Any:
    with serving() as server:
        yield server


def vectors(reply: Any) -> np.ndarray:
    assert reply.status == 200, reply.content
    return np.array([entry["embedding"] for entry in reply.json()["data"]], np.float32)


def directly(server: TinyServer, texts: list[str], how: PoolingParams) -> np.ndarray:
    """From an engine loop of nobody's: requests stepped by hand, in the engine's thread."""
    requests = [server.model.input_processor.embedding(text, how) for text in texts]

    def run(engine: Any) -> None:
        for request in requests:
            engine.add(request)
        while engine.has_work:
            engine.step()

    server.on_engine(run)
    return np.stack([request.embedding for request in requests])


@pytest.mark.parametrize("fields", [{}, {"pooling": "mean"}, {"normalize": False}], ids=str)
def test_vectors_are_the_engines(server: TinyServer, fields: dict[str, Any]) -> None:
    reply = server.post("/v1/embeddings", {"model": NAME, "input": TEXTS, **fields})
    np.testing.assert_allclose(
        vectors(reply), directly(server, TEXTS, PoolingParams(**fields)), atol=1e-6
    )
    found = reply.json()
    assert (found["object"], found["model"]) == ("list", NAME)
    assert [entry["index"] for entry in found["data"]] == [0, 1]
    tokenizer = server.model.get_tokenizer()
    tokens = sum(len(tokenizer.encode(text)) for text in TEXTS)
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    server.wait_idle()


def test_vectors_are_not_tokens(server: TinyServer) -> None:
    before = Scrape(server)
    found = server.post("/v1/embeddings", {"input": TEXTS}).json()
    after = Scrape(server)
    gained = {name: after[name] - before[name] for name in (*COUNTED, *NOT_COUNTED)}
    assert gained == {
        **dict.fromkeys(NOT_COUNTED, 0),
        "prompt_tokens_total": found["usage"]["prompt_tokens"],
        "e2e_request_latency_seconds_count": 2,
    }
    assert after.ended("stop") - before.ended("stop") == 2
    assert after.ended("length") == before.ended("length")


def test_inputs_come_in_openais_four_forms(server: TinyServer) -> None:
    ids = server.model.get_tokenizer().encode(TEXTS[0])
    for given, count in ((TEXTS[0], 1), ([TEXTS[0]], 1), (ids, 1), ([ids, ids], 2)):
        found = vectors(server.post("/v1/embeddings", {"input": given}))
        assert found.shape == (count, MODEL.hidden_size)
        np.testing.assert_allclose(
            found[0], vectors(server.post("/v1/embeddings", {"input": ids}))[0]
        )
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)


def test_base64_is_little_endian_float32(server: TinyServer) -> None:
    plain = vectors(server.post("/v1/embeddings", {"input": TEXTS[0]}))[0]
    reply = server.post("/v1/embeddings", {"input": TEXTS[0], "encoding_format": "base64"})
    raw = base64.b64decode(reply.json()["data"][0]["embedding"])
    np.testing.assert_allclose(np.frombuffer(raw, "<f4"), plain)


def test_the_openai_client(server: TinyServer) -> None:
    openai = pytest.importorskip("openai")
    address = f"http://127.0.0.1:{server.port}/v1"
    with openai.OpenAI(base_url=address, api_key="any", max_retries=0) as client:
        found = client.embeddings.create(model=NAME, input=TEXTS)  # asks for base64
        assert len(found.data) == 2
        np.testing.assert_allclose(
            found.data[1].embedding, directly(server, TEXTS, PoolingParams())[1], atol=1e-6
        )
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model=NAME, input=TEXTS, dimensions=4)
        assert caught.value.param == "dimensions"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [5, -1]}, "input"),
        ({"input": 7}, "input"),
        ({}, "input"),
        ({"input": "a", "pooling": "max"}, "pooling"),
        ({"input": "a", "normalize": 1}, "normalize"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": 8}, "dimensions"),
        ({"input": "a", "timeout": -1}, "timeout"),
        ({"input": "word " * 9999}, "input"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_is_named(server: TinyServer, fields: dict[str, Any], param: str) -> None:
    reply = server.post("/v1/embeddings", fields)
    assert reply.status == 400
    assert reply.error["param"] == param
    server.wait_idle()
