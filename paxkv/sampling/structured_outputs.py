"""StructuredOutputsParams: the form that an answer must have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paxkv import validation as checks

MOST_CHARACTERS = 100_000


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """Exactly one of these; field names are vLLM's.

    json: a JSON schema, as a mapping or its text. regex: a regular expression that the whole
    answer matches. choice: one of these strings. grammar: a grammar in Lark or GBNF, from `start`
    or `root`. json_object: True for any JSON object.

    Raises ValueError naming the field. Whether it can be compiled is known at admission.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def __post_init__(self) -> None:
        given = [name for name in self.__dataclass_fields__ if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                "structured_outputs must be given exactly one of "
                f"{', '.join(self.__dataclass_fields__)}; got {', '.join(given) or 'none'}"
            )
        (name,) = given
        object.__setattr__(self, name, getattr(self, f"_checked_{name}")())

    @property
    def kind(self) -> str:
        """Name of the field that is set."""
        return next(name for name in self.__dataclass_fields__ if getattr(self, name) is not None)

    def text(self) -> str:
        """The content of that field as one string, a key for what is compiled from it."""
        value = getattr(self, self.kind)
        return value if isinstance(value, str) else json.dumps(value)

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
        choices = checks.strings("structured_outputs.choice", self.choice)
        if not choices:
            raise _refuse("choice", self.choice, "a list of at least one non-empty string")
        _short("choice", "".join(choices))
        return choices

    def _checked_json_object(self) -> bool:
        if self.json_object is not True:
            raise _refuse("json_object", self.json_object, "True or None")
        return True


def _refuse(name: str, value: object, allowed: str) -> ValueError:
    return checks.refuse(f"structured_outputs.{name}", value, allowed)


def _string(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise _refuse(name, value, "a non-empty string")
    return _short(name, value)


def _short(name: str, text: str) -> str:
    if len(text) > MOST_CHARACTERS:
        raise _refuse(name, text, f"at most {MOST_CHARACTERS} characters long")
    return text
