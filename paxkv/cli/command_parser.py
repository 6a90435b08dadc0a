"""CommandParser: argparse for one command, forgiving about spelling."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any

MODEL_HELP = "a known name (smollm2-135m), a hub id, a Hugging Face directory or a .gguf file"


class CommandParser(argparse.ArgumentParser):
    """Takes `--max_model_len` for `--max-model-len`, and suggests the flag that was meant.

    What it parsed has this parser as `parser`, the innermost one of a command with kinds.

    Attributes:
        needs_model: a command line without MODEL is refused.
        more_words: a positional argument that takes the words behind later flags too.
    """

    needs_model = False
    more_words: str | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse does it, but that nothing unknown is left over."""
        words = None if args is None else self._spelled(list(args))
        found, rest = super().parse_known_args(words, namespace)
        if self.more_words is not None and not any(word.startswith("-") for word in rest):
            getattr(found, self.more_words).extend(rest)
        elif rest:
            self.error(self._complaint(rest))
        if not hasattr(found, "parser"):
            found.parser = self
        if self.needs_model and found.model is None:
            self.error("MODEL is missing")
        return found, []

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse's own takes a help text that could not be written for one that was.
        with nullcontext() if file is sys.stdout else suppress(OSError):
            print(message, end="", file=file or sys.stderr)

    def _spelled(self, words: list[str]) -> list[str]:
        """The words with dashes in known flags, as far as flags go."""
        end = words.index("--") if "--" in words else len(words)
        return [self._flag(word) for word in words[:end]] + words[end:]

    def _flag(self, word: str) -> str:
        name, separator, value = word.partition("=")
        dashed = name.replace("_", "-")
        known = dashed in self._option_string_actions and name not in self._option_string_actions
        return f"{dashed}{separator}{value}" if known else word

    def _complaint(self, rest: Sequence[str]) -> str:
        word = next((word for word in rest if word.startswith("-")), None)
        if word is None:
            return f"there is no use for {rest[0]!r}"
        if " " in word:
            return f"{word!r} is one word; a flag and its value are two"
        name = word.partition("=")[0]
        flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
        near = difflib.get_close_matches("--" + name.lstrip("-"), flags, n=1, cutoff=0.7)
        meant = f"; did you mean {near[0]}?" if near else ""
        return f"there is no flag {name}{meant}"

    def with_flags(self, message: str) -> str:
        """`message` with flags where it has the names of fields, as errors of Python code do."""
        for action in self._actions:
            flags = [flag for flag in action.option_strings if flag.startswith("--")]
            if flags and action.dest != "model":
                message = re.sub(_mentions(action.dest), flags[0], message)
        return message


def _mentions(field: str) -> str:
    """Where a message speaks of a field; a single word may be just a word."""
    name = re.escape(field)
    if "_" in field:
        return rf"(?<![\w/.'\-]){name}(?![\w/\-]|\.\w)"
    return rf"(?<![\w/.'\-]){name}(?==)|^{name}(?= (?:is|or|and|must|needs)\b)"


def add_model_argument(
    parser: Any, told: str = MODEL_HELP, *, required: bool = True, positional: bool = True
) -> None:
    """Add MODEL as a word and as `--model`, one of which is given.

    positional: whether as a word. parser: or a group of one that excludes others.
    """
    parser.add_argument("--model", metavar="MODEL", action=_Once, help=told)
    if positional:
        parser.add_argument(
            "model", nargs="?", metavar="MODEL", default=argparse.SUPPRESS, action=_Once, help=told
        )
    if required:
        parser.needs_model = True


class _Once(argparse.Action):
    """Stores a value that may be given in one of two ways."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, None)
        if before is not None:
            parser.error(f"MODEL is given twice, as {before!r} and {values!r}")
        if values.startswith("-"):
            parser.error(f"{values!r} is one word; a flag and its value are two")
        setattr(namespace, self.dest, values)
