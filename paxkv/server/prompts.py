"""Conversion of a body's fields to engine requests; runs in a worker thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import WithJsonSchema

from paxkv.engine.config import ResolvedConfig
from paxkv.engine.request import Request
from paxkv.sampling.sampling_params import SamplingParams
from paxkv.server.errors import BadRequest, bad_request
from paxkv.server.limits import RequestLimits
from paxkv.server.schemas import SAMPLING_FIELDS
from paxkv.text.tokenizer import Tokenizer
from paxkv.validation import shown

MARGIN = 2
R = TypeVar("R", bound=Request)

_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
_FORMS = [{"type": "string"}, _TEXTS, _IDS, {"type": "array", "items": _IDS, "minItems": 1}]
Prompts = Annotated[Any, WithJsonSchema({"anyOf": _FORMS})]
FORMS = "text, a list of texts, a list of token ids, or a list of such lists"


def sampling_params(values: Mapping[str, Any], limits: RequestLimits) -> SamplingParams:
    """Make the parameters of a request. Raises BadRequest naming the field at fault."""
    for name in ("stop_token_ids", "allowed_token_ids"):
        ids = values.get(name)
        if isinstance(ids, list) and len(ids) > limits.max_token_ids:
            raise BadRequest(
                f"{name} has {len(ids)} entries; at most {limits.max_token_ids}", param=name
            )
    try:
        params = SamplingParams(**values)
    except ValueError as error:
        raise bad_request(error, SAMPLING_FIELDS) from None
    for name, strings, most in (
        ("stop", params.stop or (), limits.max_stop_strings),
        ("bad_words", params.bad_words or (), limits.max_bad_words),
    ):
        if len(strings) > most:
            raise BadRequest(f"{name} has {len(strings)} entries; at most {most}", param=name)
        longest = max(map(len, strings), default=0)
        if longest > limits.max_stop_characters:
            raise BadRequest(
                f"{name} has an entry of {longest} characters; at most "
                f"{limits.max_stop_characters}",
                param=name,
            )
    return params


def prompt_list(prompt: Any, limits: RequestLimits, name: str = "prompt") -> list[str | list[int]]:
    """Return one or several prompts as a list; ids are validated later.

    name: of the field, for errors.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise BadRequest(f"{name} must be {FORMS}, got {shown(prompt)}", param=name)
    if not isinstance(prompt[0], str | list):
        return [prompt]
    if len(prompt) > limits.max_prompts:
        raise BadRequest(
            f"{name} has {len(prompt)} entries; at most {limits.max_prompts}", param=name
        )
    for index, entry in enumerate(prompt):
        if not isinstance(entry, str | list):
            raise BadRequest(f"{name}[{index}] must be {FORMS}, got {shown(entry)}", param=name)
    return prompt


def make_requests(
    make: Callable[[dict[str, Any], str], R],
    prompts: list[str | list[int]],
    request_id: str,
    check_text: Callable[[str], None],
    name: str = "prompt",
    cut: Callable[[str | list[int]], list[int]] | None = None,
) -> list[R]:
    """Make a request for each prompt. Raises BadRequest for the first that cannot run.

    make: the request for a prompt and an id; raises ValueError. check_text: raises ValueError for
    a text that cannot fit and is not even tokenized. name: of the prompts' field. cut: gives what
    is left of a prompt.
    """
    requests = []
    for index, prompt in enumerate(prompts):
        try:
            if cut is not None:
                prompt = cut(prompt)
            if isinstance(prompt, str):
                check_text(prompt)
            form = {"prompt" if isinstance(prompt, str) else "prompt_token_ids": prompt}
            requests.append(make(form, f"{request_id}-{index}"))
        except ValueError as error:
            named = bad_request(error, SAMPLING_FIELDS, param=name)
            where = f"{name}[{index}]: " if len(prompts) > 1 and named.param == name else ""
            raise BadRequest(where + str(error), param=named.param, code=named.code) from None
    return requests


@dataclass(frozen=True)
class Truncation:
    """Keeps the last `num_tokens` of a prompt.

    longest_text: characters that certainly are more tokens than fit; of a longer text only the
    last MARGIN times as many are tokenized.
    """

    num_tokens: int
    longest_text: int

    @classmethod
    def read(
        cls, value: Any, limits: ResolvedConfig, max_tokens: int | None, longest_text: int
    ) -> Truncation | None:
        """Read truncate_prompt_tokens: a number, -1 to leave room for max_tokens, or None.

        Raises BadRequest for anything else.
        """
        if value is None:
            return None
        most = limits.max_prompt_len
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not (value == -1 or 1 <= value <= most):
            raise BadRequest(
                f"truncate_prompt_tokens must be -1 or an integer from 1 to {most}, got "
                f"{shown(value)}",
                param="truncate_prompt_tokens",
            )
        if value == -1:
            value = max(1, min(most, limits.max_model_len - (max_tokens or 1)))
        return cls(value, longest_text)

    def text(self, tokenizer: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of the end of a text. Raises ValueError for anything else."""
        end = text[-MARGIN * self.longest_text :]
        return self.ids(tokenizer.encode(end, add_special_tokens))

    def ids(self, ids: list[int]) -> list[int]:
        return ids[-self.num_tokens :]
