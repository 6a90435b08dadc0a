"""Answers in a form, under every name a client may use for one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from paxkv.server.settings import ServerSettings
from paxkv.server.tools.definitions import Tools
from tests.server.tiny_server import (
    TinyServer,
    chat,
    completion,
    joined,
    serving,
    tokenizer,
)

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
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": {"type": 7}}, "guided_json"),
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"regex": "(a"}, "regex"),
        ({"json_schema": "{"}, "json_schema"),
        ({"ebnf": "root ::="}, "ebnf"),
        ({"grammar": "start: nowhere"}, "grammar"),
        ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format"),
        ({"response_format": {"type": "json_object", "json_schema": {}}}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": "x"}}, "response_format"),
        (
            {"response_format": {"type": "json_object", "schema": {"uniqueItems": True}}},
            "response_format",
        ),
        ({"structured_outputs": {"json": {"not": {}}}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_wrong_forms(server: TinyServer, fields: dict[str, Any], param: str) -> None:
    reply = server.post(CHAT, chat(**fields))
    assert (reply.status, reply.error["param"]) == (400, param)
    assert param in reply.error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"json_schema": SCHEMA},
        {"json_schema": json.dumps(SCHEMA)},
        {"regex": r'\{"a":true,"b":"x"\}'},
        {"grammar": r'root ::= "{\"a\":true,\"b\":\"x\"}"'},
        {"ebnf": r'root ::= "{\"a\":true,\"b\":\"x\"}"'},
        {"grammar": r'?start: "{\"a\":true,\"b\":\"x\"}"'},
    ],
    ids=str,
)
def test_no_form_is_dropped(server: TinyServer, fields: dict[str, Any]) -> None:
    """Names of other servers for one: obeyed, where they were ignored in silence."""
    assert set(json.loads(text(server, chat(**fields)))) == {"a", "b"}


def test_a_literal_is_no_special_token(server: TinyServer) -> None:
    """The text of a special token ended the answer inside a JSON string, with "stop"."""
    for form, want in (
        ({"json": {"const": "<|im_end|>"}}, '"<|im_end|>"'),
        ({"choice": ["<|endoftext|>"]}, "<|endoftext|>"),
    ):
        assert text(server, chat(structured_outputs=form)) == want


def test_no_end_before_the_form_is_whole(server: TinyServer) -> None:
    """Neither the model's end nor the request's own, however likely; and an end that is ignored
    ends nothing that can go on."""
    (letter,) = tokenizer().encode("z")
    likely_end = {"logit_bias": {"2": 100, str(letter): 90}}
    form = {"structured_outputs": {"regex": "z{3,5}"}}
    asked = chat(**form, **likely_end, **FREE)
    choice = server.post(CHAT, asked).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("zzz", "stop")
    choice = server.post(CHAT, {**asked, "ignore_eos": True}).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("zzzzz", "stop")
    (comma,) = tokenizer().encode(",")
    body = {"logit_bias": {str(comma): 100}, "stop_token_ids": [comma]}
    choice = server.post(CHAT, chat(**form, **body, **FREE)).json()["choices"][0]
    assert (choice["message"]["content"], choice["stop_reason"]) == ("zzz", comma)


def test_objects_of_response_format_are_closed(server: TinyServer) -> None:
    """A small model wrote properties of its own until max_tokens."""
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    comma = likely(",")  # so that it goes on where it may
    described = {"name": "n", "schema": schema}
    for fields in (
        {"response_format": {"type": "json_schema", "json_schema": described}},
        {"response_format": {"type": "json_object", "schema": schema}},
        {"structured_outputs": {"json": schema, "disable_additional_properties": True}},
    ):
        assert set(json.loads(text(server, chat(**fields, **comma)))) == {"a"}
    opened = {**described, "schema": {**schema, "additionalProperties": True}}
    for fields in (
        {"response_format": {"type": "json_schema", "json_schema": opened}},
        {"structured_outputs": {"json": schema}},
    ):
        choice = server.post(CHAT, {**chat(**fields, **comma), **FREE}).json()["choices"][0]
        assert "," in choice["message"]["content"]


def test_an_option_opens_them() -> None:
    schema = {"type": "object", "properties": {}}
    settings = ServerSettings(allow_additional_properties=True)
    quote = likely('"')
    with serving(settings=settings) as server:
        for strict in (None, False, True):
            described = {"name": "n", "schema": schema, "strict": strict}
            form = {"type": "json_schema", "json_schema": described}
            body = {**chat(response_format=form, **quote), **FREE}
            content = server.post(CHAT, body).json()["choices"][0]["message"]["content"]
            assert ('"' in content) == (strict is not True)
            function = {"name": "f", "parameters": schema, "strict": strict}
            tools = Tools.read([{"type": "function", "function": function}], "required")
            assert tools is not None
            form = tools.form(open_objects=True)
            assert form is not None
            assert form.disable_additional_properties == (strict is True)
