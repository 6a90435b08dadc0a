"""Requests in forms that probes, proxies and other clients send."""

from __future__ import annotations

import gzip
import json

import pytest

from paxkv.server.errors import ApiError
from paxkv.server.settings import ServerSettings
from tests.server.test_limits import raw
from tests.server.tiny_server import TinyServer, chat, completion, serving

COMPLETIONS = "/v1/completions"
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("path", ["/health", "/metrics", "/v1/models", "/v1/models/tiny", "/"])
def test_head_is_get_without_the_body(server: TinyServer, path: str) -> None:
    """Kind: a method that HTTP requires beside GET."""
    got, head = server.get(path), server.call("HEAD", path)
    assert (head.status, head.content) == (got.status, b"")
    assert head.headers.get("content-type") == got.headers.get("content-type")
    if path != "/metrics":  # whose figures move
        assert head.headers["content-length"] == got.headers["content-length"]


def test_head_where_there_is_no_get(server: TinyServer) -> None:
    for path, status in ((COMPLETIONS, 405), ("/nowhere", 404), ("/v1/models/other", 404)):
        head = server.call("HEAD", path)
        assert (head.status, head.content) == (status, b"")
    assert server.post("/health", {}).headers["allow"] == "GET, HEAD"
    assert server.get(COMPLETIONS).headers["allow"] == "POST"


@pytest.mark.parametrize(
    "target, status",
    [
        (b"http://elsewhere:81/v1/models", 200),
        (b"HTTP://elsewhere/v1/models?a=b", 200),
        (b"https://user@elsewhere/v1/models/ti%6Ey", 200),
        (b"http://elsewhere/", 200),
        (b"http://elsewhere", 200),
        (b"http://elsewhere/v1/models/http://elsewhere/", 404),
        (b"/http://elsewhere/v1/models", 404),
        (b"//elsewhere/v1/models", 404),
    ],
)
def test_targets_may_be_absolute(server: TinyServer, target: bytes, status: int) -> None:
    """Kind: a form of request that HTTP requires servers to take (RFC 9112, 3.2.2)."""
    answer = raw(server, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert int(answer.split()[1]) == status


def test_the_form_of_a_request_opens_no_route() -> None:
    with serving(settings=ServerSettings(api_key=["key"])) as server:
        for line, status in (
            (b"GET http://x/v1/models", 401),
            (b"GET http://x//v1/models", 401),
            (b"GET http://x/health/../v1/models", 401),
            (b"HEAD /v1/models", 401),
            (b"HEAD http://x/health", 200),
        ):
            answer = raw(server, line + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert int(answer.split()[1]) == status, line


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "GZIP, identity"])
def test_a_compressed_body_is_415(server: TinyServer, coding: str) -> None:
    """Kind: a refusal that does not say what is wrong."""
    body = gzip.compress(json.dumps(completion()).encode())
    reply = server.post(COMPLETIONS, body, headers={**JSON, "Content-Encoding": coding})
    assert (reply.status, reply.error["code"]) == (415, "unsupported_content_encoding")
    assert coding in reply.error["message"]
    assert reply.headers["accept-encoding"] == "identity"


def test_what_is_not_compressed_is_read(server: TinyServer) -> None:
    plain = {**JSON, "Content-Encoding": "identity"}
    assert server.post(COMPLETIONS, completion(), headers=plain).status == 200
    assert server.get("/health", headers={"Content-Encoding": "gzip"}).status == 200


@pytest.mark.parametrize(
    "body, said",
    [
        (b'{"prompt": "\xff"}', "utf-8"),
        (b'{"prompt": "a", "n": ' + b"9" * 5000 + b"}", "digits"),
        (b'{"prompt": "a"', "valid JSON"),
    ],
)
def test_a_body_that_cannot_be_read_says_why(server: TinyServer, body: bytes, said: str) -> None:
    reply = server.post(COMPLETIONS, body, headers=JSON)
    assert reply.status == 400
    assert said in reply.error["message"]


def test_bytes_that_are_no_request_are_told_why(server: TinyServer) -> None:
    answer = raw(server, b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"Host" in answer


@pytest.mark.parametrize("call", ["raise_exception(none)", "raise_exception(nothing)"])
def test_a_reason_is_never_none(server: TinyServer, call: str) -> None:
    """Kind: an exception without a message, told as "None" or as nothing."""
    tokenizer = server.service.need_tokenizer()
    templates = tokenizer._templates
    try:
        tokenizer.set_chat_template("{{ " + call + " }}")
        reply = server.post("/v1/chat/completions", chat())
    finally:
        tokenizer._templates = templates
    assert reply.status == 400
    assert "gave no reason" in reply.error["message"]
    for message in ("", "None"):
        assert ApiError(message).message not in ("", "None")
