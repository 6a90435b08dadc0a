"""Schemas as people and their libraries write them: what only describes is passed over, objects
are closed on request, white space is bounded. The kind of fault is a schema that is refused, or
obeyed in another sense than its own."""

from __future__ import annotations

from typing import Any

import pytest

from paxkv.sampling.structured_outputs import FormError
from paxkv.text import json_schema
from paxkv.text.tokenizer import Tokenizer
from tests.text.form_walk import FormWalk
from tests.text.small_tokenizers import byte_level

TEXT = {"type": "string"}


@pytest.fixture(scope="module")
def walk() -> FormWalk:
    return FormWalk(Tokenizer(byte_level()), {2}, 300)


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize("name", ["password", "binary", "path", "ipvanyaddress", "base64", "int32"])
def test_a_format_nobody_knows_is_an_annotation(walk: FormWalk, name: str) -> None:
    for schema in ({"type": "string", "format": name}, of(a={"items": {"format": name}})):
        walk.start(json=schema)
    assert walk.takes('"any text"', json={"type": "string", "format": name})


def test_a_format_somebody_knows_is_kept_to(walk: FormWalk) -> None:
    schema = {"type": "string", "format": "date"}
    assert walk.takes('"2026-12-01"', json=schema)
    assert not walk.takes('"any text"', json=schema)


def test_formats_that_the_compiler_knows_are_all_passed_to_it(walk: FormWalk) -> None:
    for name in json_schema.FORMATS:
        assert not walk.takes('" "', json={"type": "string", "format": name}), name


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "propertyNames": TEXT},
        {"type": "object", "propertyNames": True},
        {"type": "object", "propertyNames": {"description": "a name"}},
        {"type": "array", "uniqueItems": False},
        {"type": "object", "unevaluatedProperties": True},
        # What only looks like a keyword.
        of(uniqueItems=TEXT, format={"enum": ["path"]}, propertyNames={"const": {"format": "x"}}),
        {"const": {"uniqueItems": True, "format": "path"}},
    ],
    ids=str,
)
def test_what_constrains_nothing_is_passed_over(walk: FormWalk, schema: Any) -> None:
    walk.start(json=schema)


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("uniqueItems", True),
        ("propertyNames", {"pattern": "^a"}),
        ("propertyNames", False),
        ("not", TEXT),
        ("if", TEXT),
        ("contains", TEXT),
        ("dependentRequired", {"a": ["b"]}),
        ("$dynamicRef", "#a"),
    ],
)
def test_what_would_be_disobeyed_is_refused_by_name(
    walk: FormWalk, keyword: str, value: Any
) -> None:
    for schema in ({keyword: value}, of(a={keyword: value})):
        with pytest.raises(FormError, match=rf"structured_outputs\.json .*{keyword.strip('$')}"):
            walk.start(json=schema)


CLOSED: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (of(a=TEXT), ['{"a":""}', "{}"], ['{"a":"","b":1}', '{"b":1}']),
    ({"type": "object"}, ['{"b":1}'], []),
    (of(), ["{}"], ['{"b":1}']),
    (of(a=of(b=TEXT)), ['{"a":{"b":""}}'], ['{"a":{"c":1}}']),
    ({**of(a=TEXT), "additionalProperties": True}, ['{"a":"","b":1}'], []),
    ({**of(a=TEXT), "required": ["b"]}, ['{"a":"","b":1}'], ['{"a":"","b":1,"c":1}']),
    ({**of(a=TEXT), "patternProperties": {"^x": TEXT}}, ['{"a":"","x":""}'], ['{"b":1}']),
    ({"anyOf": [of(a=TEXT), of(b=TEXT)]}, ['{"a":""}', '{"b":""}'], ['{"a":"","b":""}']),
    (
        {**of(a=TEXT, b=TEXT), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a":"","b":""}', '{"b":""}'],
        ['{"a":"","c":1}'],
    ),
    ({"allOf": [of(a=TEXT), of(b=TEXT)]}, ['{"a":"","b":""}'], ['{"a":"","c":1}', '{"a":1}']),
    (
        {"$defs": {"base": of(a=TEXT)}, "allOf": [{"$ref": "#/$defs/base"}, of(b=TEXT)]},
        ['{"a":"","b":""}'],
        ['{"a":"","c":1}', '{"b":1}'],
    ),
    (
        {"$defs": {"base": {"$anchor": "base", **of(a=TEXT)}}, "$ref": "#base", **of(b=TEXT)},
        ['{"a":"","b":""}'],
        ['{"b":"","c":1}'],
    ),
    (
        {"$defs": {"node": of(next={"$ref": "#/$defs/node"})}, "$ref": "#/$defs/node"},
        ['{"next":{"next":{}}}'],
        ['{"next":{"b":1}}'],
    ),
    ({"$ref": "#/$defs/a", "$defs": {"a": of(a=TEXT)}}, ['{"a":""}'], ['{"b":1}']),
    (of(a={**TEXT, "allOf": [{"minLength": 1}, {"maxLength": 2}]}), ['{"a":"x"}'], ['{"b":1}']),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "good", "bad"), CLOSED, ids=str)
def test_closed_objects(
    walk: FormWalk, schema: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    for text in good:
        assert walk.takes(text, json=schema, disable_additional_properties=True), text
    for text in bad:
        assert not walk.takes(text, json=schema, disable_additional_properties=True), text


def test_objects_are_open_unless_asked(walk: FormWalk) -> None:
    assert walk.takes('{"a":"","b":1}', json=of(a=TEXT))
    assert not walk.takes('{"a":"","b":1}', json={**of(a=TEXT), "unevaluatedProperties": False})
    both = {"allOf": [of(a=TEXT), of(b=TEXT)], "unevaluatedProperties": False}
    assert walk.takes('{"a":"","b":""}', json=both)
    assert not walk.takes('{"a":"","c":1}', json=both)


def test_what_cannot_be_closed_is_refused_or_stays_as_it_is(walk: FormWalk) -> None:
    """Names that a pattern describes are not known."""
    mixed = {"allOf": [{"patternProperties": {"^x": TEXT}}, of(a=TEXT)]}
    assert walk.takes('{"a":""}', json=mixed, disable_additional_properties=True)
    with pytest.raises(FormError, match="unevaluatedProperties"):
        walk.start(json={**mixed, "unevaluatedProperties": False})


@pytest.mark.parametrize("fields", [{"json": of(a={"type": "integer"})}, {"json_object": True}])
def test_white_space(walk: FormWalk, fields: dict[str, Any]) -> None:
    compact, single = '{"a":1}', ['{"a": 1}', '{ "a" : 1 }', '{\n"a": 1\n}']
    assert all(walk.takes(text, **fields) for text in (compact, *single))
    for text in ('{  "a":1}', '{"a":  1}', '{"a":1\n\n}', '{\t"a":1}'):
        assert not walk.takes(text, **fields), text
    assert walk.takes(compact, **fields, disable_any_whitespace=True)
    for text in single:
        assert not walk.takes(text, **fields, disable_any_whitespace=True), text


def test_options_of_the_wrong_kind_are_refused() -> None:
    for fields, name in (
        ({"regex": "a", "disable_any_whitespace": True}, "disable_any_whitespace"),
        ({"json_object": True, "disable_additional_properties": True}, "disable_additional"),
        ({"json": {}, "disable_any_whitespace": 1}, "disable_any_whitespace"),
    ):
        with pytest.raises(FormError, match=name):
            FormWalk(Tokenizer(byte_level()), {2}, 300).start(**fields)


@pytest.mark.parametrize(
    "grammar",
    [
        '?start: "cat" | "dog"',
        '!start: "cat" | "dog"',
        '// root ::= "x"\nstart: animal\nanimal: "cat" | "dog"',
        'start: "cat" /d(?:og)/?',
        '%ignore / /\n\n  ?start : "cat"',
    ],
)
def test_lark_however_it_starts(walk: FormWalk, grammar: str) -> None:
    assert walk.takes("cat", grammar=grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "cat" | "dog"',
        '# start: here\nroot ::= animal\nanimal ::= "cat"',
        'animal ::= "x"\nroot::="cat"',
        '  root  ::= "c" [a-z]{2}',
        'start ::= "cat"\nroot ::= start',
        'a-b ::= "c"\na_b ::= "a"\naB ::= "t"\nAB ::= root\nroot ::= a-b a_b{1,1} aB # a-b',
        '2nd ::= "cat"\nroot ::= 2nd | "start" | [start]',
    ],
)
def test_gbnf_however_it_starts(walk: FormWalk, grammar: str) -> None:
    assert walk.takes("cat", grammar=grammar)


def test_a_schema_keeps_its_meaning_within_another(walk: FormWalk) -> None:
    node = {"$id": "https://example.com/node", "type": "object", "required": ["next"],
            "properties": {"next": {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/end"}]},
                           "self": {"$ref": "https://example.com/node#/definitions/s"}},
            "$defs": {"end": {"const": 0}}, "definitions": {"s": {"const": 1}}}  # fmt: skip
    leaf = {**node, "$defs": {"end": {"const": 2}}}
    both = {"anyOf": [json_schema.embedded(node, "a:0"), json_schema.embedded(leaf, "a:1")]}
    assert walk.takes('{"next":{"next":0},"self":1}', json=both)
    assert walk.takes('{"next":{"next":2}}', json=both)
    assert not walk.takes('{"next":0,"self":2}', json=both)
    assert not walk.takes("0", json=both)
