"""Structured outputs of a request, each under the field it was sent in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paxkv.sampling.structured_outputs import FormError, StructuredOutputsParams
from paxkv.server.errors import BadRequest

# Fields that are a form by themselves: vLLM's earlier names, and those of llama.cpp and SGLang.
FORM_FIELDS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "regex": "regex",
    "grammar": "grammar",
    "ebnf": "grammar",
}
# Keys of response_format that hold a schema, by type.
RESPONSE_TYPES: dict[str, str | None] = {
    "text": None,
    "json_object": "schema",
    "json_schema": "json_schema",
}


@dataclass(frozen=True, kw_only=True)
class SentForm(StructuredOutputsParams):
    """A structured output sent in another field than structured_outputs; errors name that field."""

    sent_as: str


def sent_form(sent_as: str, **form: Any) -> SentForm:
    """Parse a field's structured output. Raises BadRequest naming the field."""
    try:
        return SentForm(sent_as=sent_as, **form)
    except FormError as error:
        raise refused_form(error, sent_as) from None


def refused_form(error: FormError, sent_as: str | None = None) -> BadRequest:
    """Error for a structured output that was sent in this field."""
    if sent_as is None:
        return BadRequest(str(error), param="structured_outputs")
    return BadRequest(f"{sent_as} {error.reason}", param=sent_as)


def response_form(
    response_format: Mapping[str, Any] | None, *, open_objects: bool = False
) -> SentForm | None:
    """Parse OpenAI's response_format; None for plain text.

    open_objects: leave objects of a schema open that say nothing of additionalProperties and are
    not strict.
    """
    if response_format is None:
        return None
    kind = response_format.get("type")
    if kind not in RESPONSE_TYPES:
        raise _wrong(f"type must be one of {', '.join(RESPONSE_TYPES)}")
    key = RESPONSE_TYPES[kind]
    for other in RESPONSE_TYPES.values():
        if other not in (None, key) and response_format.get(other) is not None:
            raise _wrong(f"{other} means nothing with the type {kind}")
    if key is None:
        return None
    described = response_format.get(key)
    if kind == "json_object":
        if described is None:
            return sent_form("response_format", json_object=True)
        schema, strict, path = described, False, key
    else:
        described = described if isinstance(described, Mapping) else {}
        schema, strict = described.get("schema"), described.get("strict") is True
        path = f"{key}.schema"
    if not isinstance(schema, Mapping):
        raise _wrong(f"{path} must be a JSON schema, an object")
    closed = strict or not open_objects
    return sent_form("response_format", json=schema, disable_additional_properties=closed)


def _wrong(reason: str) -> BadRequest:
    return BadRequest(f"response_format.{reason}", param="response_format")
