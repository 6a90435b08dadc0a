"""Tokenizers from tokenizer.json and the files beside it."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from convert.fields import Fields, shown
from convert.hf_config import read_json
from paxkv.text.tokenizer import Tokenizer

_ROLES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_CONFIG, _MAP = "tokenizer_config.json", "special_tokens_map.json"
_ADDED = "added_tokens_decoder"
_FLAGS = ("single_word", "lstrip", "rstrip", "special")


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def special_tokens(path: Path) -> dict[str, str]:
    """Special tokens by role from tokenizer_config.json, else special_tokens_map.json."""
    found: dict[str, str | None] = dict.fromkeys(_ROLES)
    for name in (_MAP, _CONFIG):
        fields = Fields(path / name, _optional(path / name))
        for role in found.keys() & fields.values.keys():
            value = fields.values[role]
            text = value.get("content") if isinstance(value, dict) else value
            if text is not None and not isinstance(text, str):
                raise fields.wrong(role, "a string, an object with content or null")
            found[role] = text
    return {role: text for role, text in found.items() if text}


def _added_tokens(file: Path) -> dict[int, Fields]:
    """Entries of `added_tokens_decoder` by id, each with a string as its content."""
    raw = Fields(file, _optional(file)).section(_ADDED)
    added = {}
    for index, token in raw.items():
        known = isinstance(token, dict) and isinstance(token.get("content"), str)
        if not known or not index.isdecimal():
            raise ValueError(
                f"{file}: {_ADDED}[{index!r}]={shown(token)} must be an object with a string as "
                "its content, under a number"
            )
        added[int(index)] = Fields(file, token, f"{_ADDED}[{index}].")
    return dict(sorted(added.items()))


def eos_id(path: Path) -> int | None:
    """Id of the tokenizer's end token, read without building the tokenizer."""
    text = special_tokens(path).get("eos_token")
    if text is None:
        return None
    for index, token in _added_tokens(path / _CONFIG).items():
        if token.values["content"] == text:
            return index
    file = path / "tokenizer.json"
    entries = _optional(file).get("added_tokens") or []
    for token in entries if isinstance(entries, list) else []:
        if isinstance(token, dict) and token.get("content") == text:
            return Fields(file, token, "added_tokens.").integer("id", least=0)
    return None


def _added_token(token: Fields) -> AddedToken:
    """With the library's defaults for flags that are missing."""
    flags = {flag: token.flag(flag, False) for flag in _FLAGS}
    normalized = token.flag("normalized", not flags["special"])
    return AddedToken(token.text("content"), normalized=normalized, **flags)


def chat_templates(path: Path, config: dict[str, Any]) -> dict[str, str]:
    """Templates by name: chat_template.jinja and additional_chat_templates/*.jinja win over
    chat_template.json, and that over tokenizer_config.json."""
    stored = config.get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(stored, str):
        templates["default"] = stored
    elif isinstance(stored, list):
        for index, entry in enumerate(stored):
            names = entry.keys() if isinstance(entry, dict) else set()
            if not {"name", "template"} <= names or not all(
                isinstance(text, str) for text in entry.values()
            ):
                raise ValueError(
                    f"{path / _CONFIG}: chat_template[{index}]={shown(entry)} must be an object "
                    "with the strings name and template"
                )
            templates[entry["name"]] = entry["template"]
    legacy = _optional(path / "chat_template.json").get("chat_template")
    if isinstance(legacy, str):
        templates["default"] = legacy
    if (path / "chat_template.jinja").is_file():
        templates["default"] = (path / "chat_template.jinja").read_text(encoding="utf-8-sig")
    for file in sorted((path / "additional_chat_templates").glob("*.jinja")):
        templates[file.stem] = file.read_text(encoding="utf-8-sig")
    return templates


def hf_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of the directory at `path`.

    tokenizer.json is taken at its word: its post-processor decides about BOS and EOS (as in
    transformers; add_bos_token does not), also where transformers would rebuild the rest from a
    class. Raises ValueError if it is missing or cannot be read.
    """
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ValueError(
            f"{file} is missing; convert the model's tokenizer once with transformers: "
            "AutoTokenizer.from_pretrained(…).save_pretrained(…)"
        )
    try:
        backend = tokenizers.Tokenizer.from_buffer(file.read_bytes().removeprefix(BOM_UTF8))
    except Exception as error:
        raise ValueError(f"{file} cannot be read: {error}") from None
    backend.no_truncation()
    backend.no_padding()
    config = _optional(path / "tokenizer_config.json")
    for token in _added_tokens(path / _CONFIG).values():
        if backend.token_to_id(token.values["content"]) is None:
            backend.add_tokens([_added_token(token)])
    special = special_tokens(path)
    missing = [text for text in special.values() if backend.token_to_id(text) is None]
    if missing:
        backend.add_special_tokens(list(dict.fromkeys(missing)))
    return Tokenizer(backend, special, chat_templates(path, config))
