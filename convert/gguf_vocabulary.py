"""The vocabulary in a GGUF file's metadata: tokens, their types and scores, and special ids."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from gguf import TokenType

from convert.fields import Fields, as_integer, is_unicode, shown
from convert.token_ids import known_ids

ROLES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
    "seperator": "sep_token",  # spelt so in the format
    "mask": "mask_token",
}
_ENDS = ("eos", "eot", "eom")
_KINDS = frozenset(map(int, TokenType))
SPECIAL = (TokenType.CONTROL, TokenType.UNKNOWN)
# llama.cpp's, for files without the key or with an id that does not exist
_DEFAULT_IDS = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "gpt2": {"bos": 11, "eos": 11},
}
# What else llama.cpp takes for ends of an answer, here where the file names none.
_END_TEXTS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "</s>")


class Vocabulary:
    """The `tokenizer.ggml.` keys of a file's metadata.

    Each list is looked at when it is first used. Raises ValueError naming the key for what is of
    the wrong type, and for lists that do not fit each other.
    """

    def __init__(self, path: Path, metadata: dict[str, Any]) -> None:
        prefix = "tokenizer.ggml."
        own = {key: value for key, value in metadata.items() if key.startswith(prefix)}
        self.fields = Fields(
            path, {key.removeprefix(prefix): value for key, value in own.items()}, prefix
        )
        stored = self.fields.values.get("tokens")
        if stored is None:
            raise ValueError(f"{path} holds no tokenizer (tokenizer.ggml.tokens)")
        if not isinstance(stored, list) or not stored:
            raise self.fields.wrong("tokens", "a list of strings")
        self._stored = stored

    @cached_property
    def tokens(self) -> list[str]:
        """Texts by id, without the unused ones at the end, which converters add to fill the
        embedding's rows. One without text is called "[EMPTY_5]" after its id, as in llama.cpp.
        """
        for index, token in enumerate(self._stored):
            if not isinstance(token, str) or not is_unicode(token):
                raise ValueError(
                    f"{self.fields.source}: tokenizer.ggml.tokens[{index}]={shown(token)} must be "
                    "a string of valid UTF-8"
                )
        count = len(self._stored)
        while self.types and count and self.types[count - 1] == TokenType.UNUSED:
            count -= 1
        return [token or f"[EMPTY_{index}]" for index, token in enumerate(self._stored[:count])]

    @cached_property
    def ids(self) -> dict[str, int]:
        """Ids by text. Raises ValueError for a text that has two: llama.cpp ends there, too."""
        ids = {token: index for index, token in enumerate(self.tokens)}
        if len(ids) < len(self.tokens):
            first = next(index for index, token in enumerate(self.tokens) if ids[token] != index)
            token = self.tokens[first]
            raise ValueError(
                f"{self.fields.source}: tokenizer.ggml.tokens holds {token!r} twice, as {first} "
                f"and {ids[token]}: which id the text has is not clear; take the tokenizer from "
                "elsewhere (tokenizer=…)"
            )
        return ids

    @cached_property
    def types(self) -> list[int] | None:
        """A `TokenType` for each token, None if the file has none."""
        return self._for_each("token_type", "a token type", _kind)

    @cached_property
    def scores(self) -> list[float] | None:
        """SentencePiece's score of each token, None if the file has none."""
        return self._for_each("scores", "a number", _score)

    def _for_each(self, key: str, wanted: str, read: Any) -> list[Any] | None:
        """A list with an entry for each token; None if there is none."""
        values = self.fields.values.get(key)
        if values is None:
            return None
        if not isinstance(values, list) or len(values) != len(self._stored):
            count = f"{len(values)} entries" if isinstance(values, list) else shown(values)
            raise ValueError(
                f"{self.fields.source}: tokenizer.ggml.{key} has {count}, "
                f"tokenizer.ggml.tokens {len(self._stored)}: there must be one for each token"
            )
        found = [read(value) for value in values]
        if None in found:
            index = found.index(None)
            raise ValueError(
                f"{self.fields.source}: tokenizer.ggml.{key}[{index}]={shown(values[index])} must "
                f"be {wanted}"
            )
        return found

    def kind(self, index: int) -> int:
        """A token's type."""
        return TokenType.NORMAL if self.types is None else self.types[index]

    @cached_property
    def _named(self) -> dict[str, int]:
        """Ids that the file gives to roles, if the vocabulary has them."""
        found = {}
        for role in dict.fromkeys((*ROLES, *_ENDS)):
            key = f"{role}_token_id"
            ids = self.fields.ids(key)
            if len(ids) > 1:
                raise self.fields.wrong(key, "one token id")
            source, name = self.fields.source, f"tokenizer.ggml.{key}"
            for index in known_ids(source, name, ids, len(self._stored)):
                found[role] = index
        return found

    def special_id(self, role: str) -> int | None:
        """The id of `role`, a key of `ROLES`: the file's, or llama.cpp's default for its kind."""
        if role in self._named:
            return self._named[role]
        index = _DEFAULT_IDS.get(str(self.fields.values.get("model")), {}).get(role)
        if index is None or index >= len(self._stored):
            return None
        return index if self.types is None or self.kind(index) in SPECIAL else None

    @cached_property
    def special_tokens(self) -> dict[str, str]:
        """Text by the name transformers has for the role."""
        ids = {name: self.special_id(role) for role, name in ROLES.items()}
        return {
            name: self.tokens[index]
            for name, index in ids.items()
            if index is not None and index < len(self.tokens)
        }

    def end_ids(self) -> tuple[int, ...]:
        """Every id that ends an answer."""
        named = [self._named[role] for role in _ENDS if role in self._named]
        if named:
            return tuple(dict.fromkeys(named))
        by_text = [
            index
            for index, token in enumerate(self._stored)
            if token in _END_TEXTS and self.kind(index) in SPECIAL
        ]
        default = self.special_id("eos")
        return tuple(by_text) or (() if default is None else (default,))


def _kind(value: Any) -> int | None:
    found = as_integer(value)
    return found if found in _KINDS else None


def _score(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if good and abs(value) < float("inf") else None
