"""Answers in a form, under every name a client may use for one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.server.tiny_server import TinyServer, chat, completion, joined, tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
CHAT = "/v1/chat/completions"
FREE: dict[str, Any] = {"ignore_eos": False, "max_tokens": 60, "temperature": 1, "seed": 4}


def likely(character: str) -> dict[str, Any]:
    (token,) = tokenizer().encode(character)
    return {"logit_bias": {str(token): 50}}


def text(server: TinyServer, body: dict[str, Any]) -> str:
    reply = server.post(CHAT, {**body, **FREE})
    assert reply.status == 200, reply.content
    choice = reply.json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    streamed = joined(server.events(CHAT, {**body, **FREE}))[0]
    assert streamed["text"] == choice["message"]["content"]
    return choice["message"]["content"]


@pytest.mark.parametrize(
    "fields",
    [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": SCHEMA},
            }
        },
        {"structured_outputs": {"json": SCHEMA}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
    ],
)
def test_schemas(server: TinyServer, fields: dict[str, Any]) -> None:
    found = json.loads(text(server, chat(**fields)))
    assert set(found) == {"a", "b"}
    assert type(found["a"]) is bool
    assert found["b"] in ("x", "yy")


def test_expressions_choices_and_grammars(server: TinyServer) -> None:
    assert re.fullmatch("[ab]{3,5}", text(server, chat(guided_regex="[ab]{3,5}")))
    assert text(server, chat(guided_choice=["red", "blue"])) in ("red", "blue")
    assert text(server, chat(structured_outputs={"choice": ["red"]})) == "red"
    grammar = 'start: "x" | "y" start'
    assert re.fullmatch("y*x", text(server, chat(guided_grammar=grammar, **likely("x"))))
    plain = server.post("/v1/completions", completion(guided_choice=["one"], n=2))
    assert [choice["text"] for choice in plain.json()["choices"]] == ["one", "one"]


def test_any_object(server: TinyServer) -> None:
    close = likely("}")  # so that it ends
    for fields in ({"response_format": {"type": "json_object"}}, {"guided_json_object": True}):
        assert isinstance(json.loads(text(server, chat(**fields, **close))), dict)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": []}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"guided_json": "{"}, "structured_outputs"),
        ({"guided_json": {"type": 7}}, "structured_outputs"),
        ({"guided_regex": "(a"}, "structured_outputs"),
        ({"guided_choice": []}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_wrong_forms(server: TinyServer, fields: dict[str, Any], param: str) -> None:
    reply = server.post(CHAT, chat(**fields))
    assert (reply.status, reply.error["param"]) == (400, param)
