"""A tokenizer from tokenizer.json and the files that go with it."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

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


def _text(token: Any) -> str | None:
    """Special tokens are stored as a string or as an object with `content`."""
    return token.get("content") if isinstance(token, dict) else token


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def special_tokens(path: Path) -> dict[str, str]:
    """Special tokens by role from tokenizer_config.json, else special_tokens_map.json."""
    merged = _optional(path / "special_tokens_map.json") | {
        role: token
        for role, token in _optional(path / "tokenizer_config.json").items()
        if role in _ROLES
    }
    found = {role: _text(merged.get(role)) for role in _ROLES}
    return {role: text for role, text in found.items() if text}


def eos_id(path: Path) -> int | None:
    """Id of the tokenizer's end token, read without building the tokenizer."""
    text = special_tokens(path).get("eos_token")
    added = _optional(path / "tokenizer_config.json").get("added_tokens_decoder", {})
    for index, token in added.items():
        if token["content"] == text:
            return int(index)
    for token in _optional(path / "tokenizer.json").get("added_tokens", []):
        if token["content"] == text:
            return int(token["id"])
    return None


def chat_templates(path: Path, config: dict[str, Any]) -> dict[str, str]:
    """Templates by name: chat_template.jinja and additional_chat_templates/*.jinja win over
    chat_template.json, and that over tokenizer_config.json."""
    stored = config.get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(stored, str):
        templates["default"] = stored
    elif isinstance(stored, list):
        templates |= {entry["name"]: entry["template"] for entry in stored}
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
    for _, token in sorted(config.get("added_tokens_decoder", {}).items(), key=lambda e: int(e[0])):
        if backend.token_to_id(token["content"]) is None:
            flags = {key: token[key] for key in ("lstrip", "rstrip", "normalized", "special")}
            backend.add_tokens([AddedToken(token["content"], **flags)])
    special = special_tokens(path)
    missing = [text for text in special.values() if backend.token_to_id(text) is None]
    if missing:
        backend.add_special_tokens(list(dict.fromkeys(missing)))
    return Tokenizer(backend, special, chat_templates(path, config))
