"""Flags made from a dataclass: names, types, help texts, defaults."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pytest

from paxkv.cli.dataclass_flags import (
    add_dataclass_flags,
    field_documents,
    given_values,
    parse_integer,
)


@dataclass(frozen=True)
class Settings:
    """What to do.

    page_size, room: tokens, 100 % of them. mode: how; one of: a, b.
    Not a field: and this belongs to it.
    quick: whether.

    weights: by token.
    """

    page_size: int = 16
    room: int | None = None
    mode: Literal["a", "b"] = "a"
    quick: bool = True
    share: float = 0.5
    words: str | Sequence[str] | None = None
    ids: Sequence[int] | None = None
    weights: Mapping[int, float] | None = None
    hidden: str = "x"


def parse(*arguments, **options):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_dataclass_flags(parser, Settings, "settings", skip={"hidden"}, **options)
    return given_values(parser.parse_args(arguments), Settings)


def test_only_what_is_given_is_passed_on():
    assert parse() == {}
    assert parse(defaults={"room": 7}) == {"room": 7}
    assert parse("--room", "8", defaults={"room": 7}) == {"room": 8}


def test_every_type():
    arguments = (
        "--page-size 32 --room 4k --mode b --no-quick --share 0.25 --words a --words b "
        "--ids 3 --ids 4 --weights 5=-1 --weights 6=0.5"
    )
    values = parse(*arguments.split())
    assert values == {
        "page_size": 32,
        "room": 4000,
        "mode": "b",
        "quick": False,
        "share": 0.25,
        "words": ["a", "b"],
        "ids": [3, 4],
        "weights": {5: -1.0, 6: 0.5},
    }
    assert Settings(**values).mode == "b"


@pytest.mark.parametrize("arguments", [["--mode", "c"], ["--hidden", "y"], ["--room", "1.5"]])
def test_what_does_not_fit_is_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        parse(*arguments)


def test_help_comes_from_the_docstring(capsys):
    documents = field_documents(Settings)
    assert documents["page_size"] == documents["room"] == "tokens, 100 % of them."
    assert documents["quick"] == "whether."
    assert documents["weights"] == "by token."
    assert documents["mode"].startswith("how; one of: a, b.")
    with pytest.raises(SystemExit):
        parse("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "--page-size N tokens, 100 % of them. (default: 16)" in text
    assert "--quick, --no-quick" in text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-3", -3),
        ("1_000", 1000),
        ("2k", 2000),
        ("2K", 2048),
        ("1.5G", 1536 * 2**20),
        ("4GiB", 4 * 2**30),
        ("3GB", 3 * 2**30),
    ],
)
def test_integers_may_have_a_suffix(text, value):
    assert parse_integer(text) == value


@pytest.mark.parametrize("text", ["", "x", "1.5", "1 2", "k", "0x10"])
def test_other_texts_are_no_integers(text):
    with pytest.raises(argparse.ArgumentTypeError):
        parse_integer(text)


def test_every_engine_option_is_documented():
    from dataclasses import fields

    from paxkv.engine.config import EngineConfig

    documents = field_documents(EngineConfig)
    assert set(documents) == {field.name for field in fields(EngineConfig)}
    assert all(documents.values())
