"""Command-line flags made from a configuration dataclass, so that there is one list of options."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_SUFFIXES = {
    "": 1,
    **{letter: 1000**power for power, letter in enumerate("kmgt", start=1)},
    **{letter: 1024**power for power, letter in enumerate("KMGT", start=1)},
}


def add_dataclass_flags(
    parser: argparse.ArgumentParser,
    config_class: type,
    title: str,
    skip: Collection[str] = (),
    defaults: Mapping[str, object] | None = None,
    aliases: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Add `--field-name` for each field of `config_class` but those in `skip`.

    Help texts come from the class docstring's `name: text` entries. A flag that is not given
    leaves no attribute, so that the dataclass's own default holds; `defaults` replaces some.
    aliases: further flags of a field.
    """
    group = parser.add_argument_group(title)
    documents = field_documents(config_class)
    hints = get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        if field.name in skip:
            continue
        default = (defaults or {}).get(field.name, field.default)
        description = documents.get(field.name, "")
        if default not in (None, dataclasses.MISSING):
            description = f"{description} (default: {default})".strip()
        group.add_argument(
            "--" + field.name.replace("_", "-"),
            *(aliases or {}).get(field.name, ()),
            dest=field.name,
            default=(defaults or {}).get(field.name, argparse.SUPPRESS),
            help=description.replace("%", "%%"),
            **_argument(hints[field.name]),
        )


def given_values(args: argparse.Namespace, config_class: type) -> dict[str, Any]:
    """The values of `config_class`'s fields that the command line (or a default) gave."""
    values = {
        field.name: getattr(args, field.name)
        for field in dataclasses.fields(config_class)
        if hasattr(args, field.name)
    }
    return {
        name: dict(value) if value and isinstance(value, list) and _is_pairs(value) else value
        for name, value in values.items()
    }


def field_documents(config_class: type) -> dict[str, str]:
    """What the class docstring says on each field: `name: text`, or `name, other: text`."""
    text = " ".join((inspect.getdoc(config_class) or "").split())
    names = {field.name for field in dataclasses.fields(config_class)}
    entries = [
        (match, set(match.group(1).split(", ")))
        for match in re.finditer(r"(?<!\S)(\w+(?:, \w+)*): ", text)
        if set(match.group(1).split(", ")) <= names
    ]
    documents = {}
    for (match, described), following in zip(entries, [*entries[1:], None]):
        end = following[0].start() if following else len(text)
        for name in described:
            documents[name] = text[match.end() : end].strip()
    return documents


def parse_integer(text: str) -> int:
    """An integer; `k m g t` are powers of 1000, `K M G T` (also `KiB` …) powers of 1024."""
    match = re.fullmatch(r"([+-]?\d+(?:\.\d+)?)([kmgtKMGT]?)(?:i?B)?", text.replace("_", ""))
    if match is None or ("." in match[1] and not match[2]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an integer, with or without a unit as in 8GiB or 64k"
        )
    if "." not in match[1]:
        return int(match[1]) * _SUFFIXES[match[2]]
    return round(float(match[1]) * _SUFFIXES[match[2]])


def _parse_pair(text: str) -> tuple[int, float]:
    key, separator, value = text.partition("=")
    try:
        if not separator:
            raise ValueError
        return int(key), float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form TOKEN_ID=NUMBER") from None


def _is_pairs(value: Sequence[object]) -> bool:
    return all(isinstance(item, tuple) for item in value)


def _argument(hint: Any) -> dict[str, Any]:
    """argparse's keywords for a field of this type; `None` in a union means "not given"."""
    if get_origin(hint) in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not type(None)]
        words = [word for option in options for word in get_args(option)]
        if bool in options and words:
            return {"nargs": "?", "const": True, "choices": words}
        # Of `str | Sequence[str]` the list is what repeating a flag gives.
        hint = max(options, key=lambda option: get_origin(option) is not None)
    origin, inner = get_origin(hint), get_args(hint)
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if origin is Literal:
        return {"choices": inner}
    if origin is not None and issubclass(origin, Mapping):
        return {"action": "append", "type": _parse_pair, "metavar": "TOKEN_ID=NUMBER"}
    if origin is not None and issubclass(origin, Sequence | set | frozenset):
        return {"action": "append", **_argument(inner[0])}
    if hint is int:
        return {"type": parse_integer, "metavar": "N"}
    if hint is float:
        return {"type": float, "metavar": "X"}
    return {"type": str, "metavar": "TEXT"}
