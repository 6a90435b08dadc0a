"""StructuredOutputsParams: the schema, expression or grammar that an answer must match."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from paxkv import validation as checks

MOST_CHARACTERS = 100_000
KINDS = ("json", "regex", "choice", "grammar", "json_object")
# Options, and the kinds that they change anything for.
OPTIONS = {
    "disable_any_whitespace": ("json", "json_object"),
    "disable_additional_properties": ("json",),
}


class FormError(ValueError):
    """A form that cannot be had.

    field: of StructuredOutputsParams, empty for all of it. reason: goes on after a name for it.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{'.'.join(filter(None, ('structured_outputs', field)))} {reason}")
        self.field = field
        self.reason = reason


class FormSource(NamedTuple):
    """Source of a compiled grammar.

    kind: one of KINDS. text: of that field. compact: no white space between JSON's tokens.
    closed: objects that name their properties have no others.
    """

    kind: str
    text: str
    compact: bool = False
    closed: bool = False


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """Exactly one form, and how JSON is written in it; field names are vLLM's.

    json: a JSON schema, as a mapping or its text. regex: a regular expression that the whole
    answer matches. choice: one of these strings. grammar: a grammar in Lark or GBNF, from `start`
    or `root`. json_object: True for any JSON object.
    disable_any_whitespace: write JSON without white space; otherwise a single space or newline
    may stand between two of its tokens. disable_additional_properties: an object of `json` has no
    properties but those named, unless the schema says something of `additionalProperties`.

    Raises FormError, a ValueError, naming the field. Whether it can be compiled is known
    when a request is made.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False

    def __post_init__(self) -> None:
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            found = ", ".join(given) or "none"
            raise FormError("", f"must be given exactly one of {', '.join(KINDS)}; got {found}")
        (name,) = given
        object.__setattr__(self, name, getattr(self, f"_checked_{name}")())
        for option, kinds in OPTIONS.items():
            value = getattr(self, option)
            if not isinstance(value, bool):
                raise _refuse(option, value, "True or False")
            if value and name not in kinds:
                raise _refuse(option, value, f"False with {name}")

    @property
    def kind(self) -> str:
        """Name of the field that is set."""
        return next(name for name in KINDS if getattr(self, name) is not None)

    def source(self) -> FormSource:
        """What is compiled, a key for the result."""
        value = getattr(self, self.kind)
        text = value if isinstance(value, str) else json.dumps(value)
        options = (self.disable_any_whitespace, self.disable_additional_properties)
        return FormSource(self.kind, text, *options)

    def _checked_json(self) -> str:
        schema = self.json
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except ValueError:
                raise _refuse("json", self.json, "a JSON schema") from None
        if not isinstance(schema, Mapping):
            raise _refuse("json", self.json, "a JSON schema: an object or its text")
        try:
            return _short("json", json.dumps(schema))
        except (TypeError, ValueError, RecursionError):
            raise _refuse("json", self.json, "a JSON schema of plain JSON values") from None

    def _checked_regex(self) -> str:
        return _string("regex", self.regex)

    def _checked_grammar(self) -> str:
        return _string("grammar", self.grammar)

    def _checked_choice(self) -> tuple[str, ...]:
        choices = self.choice
        if not isinstance(choices, (list, tuple)) or not choices:
            raise _refuse("choice", choices, "a list of at least one non-empty string")
        for choice in choices:
            if not isinstance(choice, str) or not choice:
                raise _refuse("choice", choice, "a non-empty string in every entry")
        choices = tuple(choices)
        _short("choice", "".join(choices))
        return choices

    def _checked_json_object(self) -> bool:
        if self.json_object is not True:
            raise _refuse("json_object", self.json_object, "True or None")
        return True


def _refuse(name: str, value: object, allowed: str) -> FormError:
    return FormError(name, f"must be {allowed}, got {checks.shown(value)}")


def _string(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise _refuse(name, value, "a non-empty string")
    return _short(name, value)


def _short(name: str, text: str) -> str:
    if len(text) > MOST_CHARACTERS:
        raise _refuse(name, text, f"at most {MOST_CHARACTERS} characters long")
    return text
