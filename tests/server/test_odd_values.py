"""Every field of every route with values that JSON, Python or the engine trip over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.tiny_server import TinyServer, chat, completion

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
# As text: most of them are no JSON, and Python's parser takes them all the same.
ODD = ["NaN", "-Infinity", "1e999", "1" + "0" * 400, r'"\ud800"', r'["\udc00"]', r'{"\ud800": NaN}',
       "[" * 400 + "]" * 400]  # fmt: skip
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    COMPLETIONS: ("CompletionBody", completion(max_tokens=2)),
    CHAT: ("ChatBody", chat(max_tokens=2)),
    "/generate": ("PlainBody", completion(max_tokens=2)),
    "/v1/embeddings": ("EmbeddingBody", {"input": "the cat"}),
    "/tokenize": ("TokenizeBody", {"prompt": "the cat"}),
    "/detokenize": ("DetokenizeBody", {"tokens": [5]}),
}
CANARY = completion("the cat", max_tokens=4)
JSON = {"Content-Type": "application/json"}


def sent(body: dict[str, Any], name: str, value: str) -> bytes:
    """The body with a field as it is written here."""
    others = json.dumps({key: other for key, other in body.items() if key != name})
    return f'{others[:-1]}, "{name}": {value}}}'.replace("{, ", "{").encode()


def judge(server: TinyServer, path: str, content: bytes) -> None:
    reply = server.post(path, content, headers=JSON)
    shown = (path, content[:300], reply.status, reply.content[:300])
    assert reply.status in (200, 400, 404, 408), shown
    if reply.headers["content-type"] == "application/json":
        reply.json()  # strict, UTF-8 included
    if reply.status != 200:
        assert reply.error["message"], shown
        assert len(reply.content) < 800, shown


@pytest.mark.parametrize("path", BODIES)
def test_odd_values_of_every_field(server: TinyServer, path: str) -> None:
    schema, body = BODIES[path]
    want = server.post(COMPLETIONS, CANARY).json()["choices"]
    names = server.get("/openapi.json").json()["components"]["schemas"][schema]["properties"]
    assert len(names) >= len(body)
    for name in [*names, "unknown_field"]:
        for value in ODD:
            judge(server, path, sent(body, name, value))
    assert server.post(COMPLETIONS, CANARY).json()["choices"] == want


@pytest.mark.parametrize("value", ["0", "-1", "-0.0", "NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/generate", "/v1/embeddings"])
def test_times_that_are_none(server: TinyServer, path: str, value: str) -> None:
    """A NaN among the event loop's timers would stop them all."""
    reply = server.post(path, sent(BODIES[path][1], "timeout", value), headers=JSON)
    assert (reply.status, reply.error["param"]) == (400, "timeout")


def test_times_that_are_very_short_or_long(server: TinyServer) -> None:
    assert server.post(COMPLETIONS, completion(timeout=1e-9, max_tokens=300)).status == 408
    for seconds in (1e308, 10**300, 5e9):
        assert server.post(COMPLETIONS, completion(timeout=seconds)).status == 200


@pytest.mark.parametrize(
    "content",
    [
        b'{"prompt": "\xff"}',
        b'{"prompt": "\xc0\xaf"}',
        b'{"prompt": "\xed\xa0\x80"}',
        b'\xef\xbb\xbf{"prompt": "a"',
        b'{"prompt": "a", "prompt": NaN}',
        b'{"prompt": "a"} {"prompt": "a"}',
        b'{"prompt": "a\x00"}',
        b'{"prompt": "a", "max_tokens": 1e0x}',
        b"\x1f\x8b\x08\x00",
        b"null",
        b"NaN",
        b"[]" * 9,
    ],
)
def test_what_is_no_json(server: TinyServer, content: bytes) -> None:
    reply = server.post(COMPLETIONS, content, headers=JSON)
    assert reply.status == 400
    assert reply.error["message"]


def test_the_most_of_everything(server: TinyServer) -> None:
    """At a limit it works, one beyond it is refused by name."""
    vocabulary = [str(token) for token in range(3, 300)]
    for path, fields, param in (
        (COMPLETIONS, {"n": 4}, None),
        (COMPLETIONS, {"n": 1, "best_of": 4, "temperature": 1}, None),
        (COMPLETIONS, {"n": 5}, "n"),
        (COMPLETIONS, {"best_of": 5}, "best_of"),
        (COMPLETIONS, {"n": 10**9}, "n"),
        (COMPLETIONS, {"use_beam_search": True, "n": 4, "ignore_eos": False}, None),
        (COMPLETIONS, {"use_beam_search": True, "n": 5}, "n"),
        (COMPLETIONS, {"stop": ["a" * 256] * 16}, None),
        (COMPLETIONS, {"stop": "a" * 10_000}, "stop"),
        (COMPLETIONS, {"stop": ["a"] * 17}, "stop"),
        (COMPLETIONS, {"bad_words": ["a" * 10_000]}, "bad_words"),
        (COMPLETIONS, {"logit_bias": dict.fromkeys(vocabulary, 1)}, None),
        (COMPLETIONS, {"logit_bias": dict.fromkeys(map(str, range(2000)), 1)}, "logit_bias"),
        (COMPLETIONS, {"stop_token_ids": [5] * 150_001}, "stop_token_ids"),
        (COMPLETIONS, {"allowed_token_ids": [5] * 150_001}, "allowed_token_ids"),
        ("/detokenize", {"tokens": [5] * 512}, None),
        ("/detokenize", {"tokens": [5] * 513}, "tokens"),
        (CHAT, {"chat_template_kwargs": {"a": [0] * 99_999}}, None),
        (CHAT, {"chat_template_kwargs": {"a": [0] * 100_000}}, "chat_template_kwargs"),
        (CHAT, {"messages": [{"role": "user", "content": "", "a": [0] * 100_000}]}, "messages"),
        (COMPLETIONS, {"logprobs": 20}, None),
        (COMPLETIONS, {"logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"prompt": ["a"] * 1025}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": ""}] * 2049}, "messages"),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "\ud800"}}]}, "tools"),
        (CHAT, {"tools": [{"type": "function", "function": {"name": "a" * 257}}]}, "tools"),
    ):
        reply = server.post(path, {**BODIES[path][1], **fields})
        if param is None:
            assert reply.status == 200, reply.content
        else:
            assert (reply.status, reply.error["param"]) == (400, param), fields
