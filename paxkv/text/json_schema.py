"""JSON schemas, made ready for the compiler: annotations dropped, objects closed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

Schema = dict[str, Any]

FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uuid uri".split())
"""What `format` is held to; any other is an annotation (JSON Schema 2020-12, validation 7.2.1)."""

_IN_PLACE = ("allOf", "anyOf", "oneOf")
_LISTS = (*_IN_PLACE, "prefixItems", "items")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SINGLE = (
    *("items", "additionalItems", "contains", "additionalProperties", "propertyNames", "not"),
    *("if", "then", "else", "unevaluatedProperties", "unevaluatedItems", "contentSchema"),
)
_ANNOTATIONS = frozenset(("title", "description", "$comment", "examples", "default", "deprecated"))


def schemas(root: Any) -> Iterator[Schema]:
    """Yield every schema within `root`, itself first; names of properties, constants and defaults
    that only look like one are none."""
    return (schema for schema, _ in _with_bases(root))


def _with_bases(root: Any) -> Iterator[tuple[Schema, Schema]]:
    """Yield every schema and the one with the `$id` that its references start from."""
    waiting = [(root, root)]
    while waiting:
        schema, base = waiting.pop()
        if not isinstance(schema, dict):
            continue
        if isinstance(schema.get("$id"), str):
            base = schema
        yield schema, base
        below = [schema[key] for key in _SINGLE if key in schema]
        for key in _LISTS:
            below += _list(schema, key)
        for key in _MAPS:
            below += _map(schema, key).values()
        waiting += [(each, base) for each in below]


def _list(schema: Schema, key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _map(schema: Schema, key: str) -> dict[str, Any]:
    value = schema.get(key)
    return value if isinstance(value, dict) else {}


def embedded(schema: Schema, identity: str) -> Schema:
    """Copy a whole schema so that its references still mean itself within another one."""
    schema = json.loads(json.dumps(schema))
    own = schema.get("$id")
    for each in schemas(schema):
        ref = each.get("$ref")
        if isinstance(own, str) and isinstance(ref, str) and ref.partition("#")[0] == own:
            each["$ref"] = "#" + ref.partition("#")[2]
    schema["$id"] = identity
    return schema


def prepare(root: Any, *, close: bool) -> None:
    """Change `root` into what the compiler knows: annotations it refuses go, objects with
    `unevaluatedProperties: false`, or all of them, are closed."""
    for schema in schemas(root):
        if isinstance(schema.get("format"), str) and schema["format"] not in FORMATS:
            del schema["format"]
        if schema.get("uniqueItems") is False:
            del schema["uniqueItems"]
        if "propertyNames" in schema and _takes_any_name(schema["propertyNames"]):
            del schema["propertyNames"]
        if schema.get("unevaluatedProperties") is True:
            del schema["unevaluatedProperties"]
    _Closing(root).run(every=close)


def _takes_any_name(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return schema is True
    types = schema.get("type", "string")
    return "string" in _as_list(types) and not schema.keys() - _ANNOTATIONS - {"type"}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


class _Closing:
    """Closes objects: one that names its properties and says nothing of others has no others.

    Where several schemas describe one object (`allOf`, a `$ref` with siblings) it may have the
    names of all of them, and each by itself stays open, wherever else it is used.
    """

    def __init__(self, root: Any) -> None:
        self._all = list(_with_bases(root))
        self._bases = {id(schema): base for schema, base in self._all}
        self._anchors = {
            (id(base), schema["$anchor"]): schema
            for schema, base in self._all
            if isinstance(schema.get("$anchor"), str)
        }

    def run(self, every: bool) -> None:
        composed = {id(schema) for schema, _ in self._all if self._sources(schema) > 1}
        parts = {
            id(part) for schema, _ in self._all if id(schema) in composed
            for part in self._parts([schema])[1:]
        }  # fmt: skip
        for schema, _ in self._all:
            asked = schema.get("unevaluatedProperties") is False
            named = "properties" in schema or "patternProperties" in schema
            whole = asked or (every and (named or id(schema) in composed))
            if whole and id(schema) not in parts and "additionalProperties" not in schema:
                self._close(schema)

    def _close(self, schema: Schema) -> None:
        patterns = _map(schema, "patternProperties")
        alone = {key: value for key, value in schema.items() if key != "patternProperties"}
        names = self._names([alone if len(self._parts([schema])) == 1 else schema])
        if names is None or not isinstance(schema.get("properties", {}), dict):
            return
        if patterns and names.keys() - _map(schema, "properties"):
            return  # which of them a pattern describes is the compiler's to know
        properties = schema.setdefault("properties", {})
        for name in names:
            properties.setdefault(name, True)
        schema["additionalProperties"] = False
        schema.pop("unevaluatedProperties", None)

    def _sources(self, schema: Schema) -> int:
        """Count what gives names to the object that `schema` describes."""
        keys = ("properties", "patternProperties", "required")
        own = {key: schema[key] for key in keys if key in schema}
        groups = [[own], *([each] for each in _list(schema, "allOf"))]
        groups += [_list(schema, "anyOf"), _list(schema, "oneOf")]
        if "$ref" in schema:
            groups.append([self._target(schema)])
        return sum(self._names(group) != {} for group in groups)

    def _names(self, described: list[Any]) -> dict[str, None] | None:
        """The properties that these name, or None where that cannot be told."""
        names: dict[str, None] = {}
        for part in self._parts(described):
            if part is None or part.get("patternProperties"):
                return None
            if part.get("additionalProperties", False) is not False:
                return None
            names |= dict.fromkeys(_map(part, "properties"))
            names |= dict.fromkeys(n for n in _list(part, "required") if isinstance(n, str))
        return names

    def _parts(self, described: list[Any]) -> list[Schema | None]:
        """These and all that describe the same object; None for one that is elsewhere."""
        found: dict[int, Schema | None] = {}
        waiting = described[::-1]
        while waiting:
            schema = waiting.pop()
            if isinstance(schema, bool) or id(schema) in found:
                continue
            found[id(schema)] = schema if isinstance(schema, dict) else None
            if isinstance(schema, dict):
                below = [each for key in _IN_PLACE for each in _list(schema, key)]
                below += [self._target(schema)] if "$ref" in schema else []
                waiting += below[::-1]
        return list(found.values())

    def _target(self, schema: Schema) -> Any:
        """What `$ref` means; None if it is elsewhere."""
        ref = schema["$ref"]
        base = self._bases.get(id(schema))
        if not isinstance(ref, str) or not ref.startswith("#") or base is None:
            return None
        pointer = unquote(ref[1:])
        if pointer and not pointer.startswith("/"):
            return self._anchors.get((id(base), pointer))
        found: Any = base
        for key in pointer.split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, dict):
                found = found.get(key)
            else:
                return None
        return found
