"""Chat templates: Jinja, sandboxed, with the names Hugging Face's templates rely on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace

from paxkv.text.messages import plain, template_messages
from paxkv.text.text_file import read_text

# No letter: templates may change the case of a text, or search it for tags.
END_OF_CONTENT = "\ue000\ue001\ue000"
NO_TEMPLATE = (
    "this model has no chat template: give one as chat_template (inline text, or the path of a "
    "file), or use plain prompts"
)


class _Generation(Extension):
    """Accepts `{% generation %}` blocks, which only training needs, as plain text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _raise(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class _Namespace(Namespace):
    """Jinja's namespace without names that reach into Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` may be one of the names
        for name in dict(*args[1:], **kwargs):
            _refuse_private(name)
        Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: str) -> None:
    if name.startswith("_"):
        raise SecurityError(f"chat templates cannot store {name!r} in a namespace")


@lru_cache(maxsize=16)
def _compile(source: str) -> Any:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["namespace"] = _Namespace
    environment.globals["dict"] = lambda *args, **kwargs: dict(*args, **kwargs)
    environment.globals["strftime_now"] = lambda style: datetime.now().strftime(style)
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise ValueError(f"chat_template is not a valid Jinja template: {error}") from error


def load_template(template: str | Path) -> str:
    """The text of a chat template given inline or as the path of a file, compiled once to check it.

    Raises ValueError if it does not compile, or if a path names no file.
    """
    text = str(template)
    if isinstance(template, Path) or "{" not in text:
        path = Path(os.path.expanduser(text))
        if "\n" in text or not path.is_file():
            raise ValueError(
                f"chat_template={text[:200]!r} is neither template text (no '{{') nor a file"
            )
        text = read_text(path)
    _compile(text)
    return text


def _opened(messages: list[dict[str, Any]], content: Any) -> list[dict[str, Any]]:
    """The messages with a mark where the last one's content ends.

    content: of the last one, as it came.
    """
    *before, last = messages
    if content is None or not isinstance(last["content"], str):
        raise ValueError(f"messages[{len(before)}] cannot be continued: its content must be text")
    if "tool_calls" in last:
        raise ValueError(f"messages[{len(before)}] cannot be continued: its tool_calls end it")
    return [*before, {**last, "content": last["content"] + END_OF_CONTENT}]


def _cut_at_mark(text: str) -> str:
    before, mark, _ = text.rpartition(END_OF_CONTENT)
    if not mark:
        raise ValueError("the last message cannot be continued: the chat template leaves it out")
    return before


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    continue_final_message: bool = False,
    **variables: Any,
) -> str:
    """The prompt text of a conversation.

    continue_final_message: it ends where the content of the last message does. variables: further
    names the template may use, such as bos_token. `template_messages` normalizes messages. Raises
    ValueError for malformed messages and when the template itself refuses.
    """
    given = template_messages(messages)
    if continue_final_message:
        given = _opened(given, messages[-1].get("content"))
    for index, tool in enumerate(tools or ()):
        if not isinstance(tool, Mapping):
            raise ValueError(f"tools[{index}] must be an object, got {type(tool).__name__}")
    try:
        text = _compile(template).render(
            messages=given,
            tools=plain(tools) if tools else None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **plain(variables),
        )
    except TemplateError as error:
        # Jinja's errors, and `raise_exception(none)`, may come without a message.
        reason = error.message or f"it gave no reason ({type(error).__name__})"
        raise ValueError(f"the chat template refused these messages: {reason}") from error
    except (TypeError, KeyError, AttributeError, IndexError, ArithmeticError) as error:
        raise ValueError(f"the chat template failed on these messages: {error!r}") from error
    return _cut_at_mark(text) if continue_final_message else text
