"""Schemas of JSON bodies, and fields that are refused by name."""

from __future__ import annotations

import logging
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    TypeAdapter,
    WithJsonSchema,
    create_model,
)

from paxkv.sampling.sampling_params import SamplingParams
from paxkv.server.errors import BadRequest
from paxkv.server.grammar.forms import FORM_FIELDS, response_form, sent_form
from paxkv.server.request_fields import IGNORED, REFUSED

logger = logging.getLogger(__name__)

LONGEST_SHOWN = 32  # characters of an unknown field's name
MOST_SHOWN = 20
# FailFast: of a list that is wrong throughout the first error is enough, and quickly found.
ToolList = Annotated[list[dict[str, Any]] | None, FailFast()]


def _json_type(hint: Any) -> Any:
    """A type that accepts any value and is documented as `hint`, in JSON's terms.

    SamplingParams checks the values, with messages of its own.
    """
    if get_origin(hint) in (Union, types.UnionType):
        options = [option for option in get_args(hint) if not is_dataclass(option)]
        hint = reduce(or_, [_with_text_keys(option) for option in options])
    return Annotated[Any, WithJsonSchema(TypeAdapter(hint).json_schema())]


def _with_text_keys(hint: Any) -> Any:
    if get_origin(hint) is not Mapping:
        return hint
    return types.GenericAlias(dict, (str, get_args(hint)[1]))


class Body(BaseModel):
    """Base of all bodies. A null field counts as absent; an unknown one is ignored."""

    model_config = ConfigDict(extra="allow", strict=True)

    def refuse_unsupported(self) -> None:
        """Raise BadRequest for a field that would change the answer, and log what is ignored."""
        ignored = []
        for name, value in (self.model_extra or {}).items():
            refused = REFUSED.get(name)
            if refused is None:
                ignored.append(f"{name[:LONGEST_SHOWN]} ({IGNORED.get(name, 'unknown')})")
            elif value is not None and value not in refused.harmless:
                raise BadRequest(
                    f"{name} is not supported: {refused.reason}", param=name, code="unsupported"
                )
        if ignored:
            logger.info("ignored fields: %r", ignored[:MOST_SHOWN])


SAMPLING_FIELDS = tuple(field.name for field in fields(SamplingParams))
_definitions: dict[str, Any] = {
    name: (_json_type(hint), None)
    for name, hint in get_type_hints(SamplingParams).items()
    if name in SAMPLING_FIELDS
}
SamplingFields: Any = create_model("SamplingFields", __base__=Body, **_definitions)


class StreamOptions(Body):
    """include_usage: one more chunk, with the usage. continuous_usage_stats: every chunk has it."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(SamplingFields):
    """Fields of every generating route, besides all of SamplingParams.

    timeout: seconds after which the request ends with status 408. truncate_prompt_tokens: only so
    many of the prompt's last tokens count; -1 for as many as leave room for max_tokens.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: _json_type(int | None) = None  # type: ignore[valid-type]
    cache_salt: str | None = None
    truncate_prompt_tokens: _json_type(int | None) = None  # type: ignore[valid-type]
    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    return_token_ids: bool | None = None
    response_format: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str] | None, FailFast()] = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    json_schema: dict[str, Any] | str | None = None
    regex: str | None = None
    grammar: str | None = None
    ebnf: str | None = None

    def sampling(self, *, open_objects: bool = False) -> dict[str, Any]:
        """The fields of SamplingParams that were given.

        open_objects: see `response_form`.
        """
        given = {name: getattr(self, name) for name in SAMPLING_FIELDS}
        given = {name: value for name, value in given.items() if value is not None}
        if self.only_echoes:
            given["max_tokens"] = 1  # sampled and not shown
        elif self.max_completion_tokens is not None:
            given["max_tokens"] = self._most_tokens()
        if isinstance(given.get("logit_bias"), dict):
            given["logit_bias"] = _token_keys(given["logit_bias"])
        forms = self._forms(open_objects)
        if len(forms) > 1:
            raise BadRequest(f"give one of {' and '.join(forms)}, not all", param=[*forms][-1])
        if forms:
            (given["structured_outputs"],) = forms.values()
        return given

    @property
    def only_echoes(self) -> bool:
        """Whether only the prompt is requested."""
        return False

    def _most_tokens(self) -> int:
        """Validate max_completion_tokens under its own name."""
        try:
            SamplingParams(max_tokens=self.max_completion_tokens)
        except ValueError as error:
            message = str(error).replace("max_tokens", "max_completion_tokens", 1)
            raise BadRequest(message, param="max_completion_tokens") from None
        return self.max_completion_tokens

    def _forms(self, open_objects: bool) -> dict[str, Any]:
        """Structured outputs of the request, by the names of the fields used."""
        forms: dict[str, Any] = {}
        if self.structured_outputs is not None:
            forms["structured_outputs"] = self.structured_outputs
        for name, kind in FORM_FIELDS.items():
            value = getattr(self, name)
            if value is not None:
                forms[name] = sent_form(name, **{kind: value})
        if self.guided_json_object:
            forms["guided_json_object"] = sent_form("guided_json_object", json_object=True)
        form = response_form(self.response_format, open_objects=open_objects)
        if form is not None:
            forms["response_format"] = form
        return forms

    def refuse_unsupported(self) -> None:
        super().refuse_unsupported()
        options = self.stream_options
        if options is None:
            return
        if not self.stream:
            raise BadRequest("stream_options needs stream=true", param="stream_options")
        options.refuse_unsupported()

    @property
    def wants_usage_chunk(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def wants_usage_always(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.continuous_usage_stats)


def _token_keys(bias: dict[str, Any]) -> dict[Any, Any]:
    """Convert JSON's string keys to integers; others stay, to be refused by name."""
    return {int(key) if _is_integer(key) else key: value for key, value in bias.items()}


def _is_integer(key: str) -> bool:
    return key.isascii() and key.removeprefix("-").isdigit() and len(key) < 20
