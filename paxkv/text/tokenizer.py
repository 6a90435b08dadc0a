"""A tokenizer: text to ids and back, the bytes of single tokens, and chat prompts."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from paxkv.text.chat import NO_TEMPLATE, load_template, render_chat

_SPACE_MARK = "\u2581"


@functools.cache
def _byte_of_mark() -> dict[str, int]:
    """Which byte each character of a byte-level vocabulary stands for (GPT-2's table).

    Printable bytes stand for themselves, the others are numbered from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return table | {chr(0x100 + index): byte for index, byte in enumerate(hidden)}


def _complaint(text: Any) -> str:
    """Why `text` cannot be encoded, empty if it can."""
    if not isinstance(text, str):
        return f"text must be a string, got {type(text).__name__}"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"text is not valid Unicode: lone surrogate at position {error.start}"
    return ""


def _decoder_kinds(backend: tokenizers.Tokenizer) -> set[str]:
    if backend.decoder is None:
        return set()
    state = json.loads(backend.decoder.__getstate__())
    return {part["type"] for part in state.get("decoders", [state])}


class Tokenizer:
    """A `tokenizers.Tokenizer` with its special tokens and chat template.

    backend: the tokenizer. special_tokens: text by role ("bos_token", "eos_token", "pad_token", …),
    also given to chat templates. chat_templates: template text by name, "default" and possibly
    "tool_use"; they are compiled when first used. Raises ValueError if a special token has no id.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        self.backend = backend
        self.special_tokens = dict(special_tokens or {})
        for role, text in self.special_tokens.items():
            if backend.token_to_id(text) is None:
                raise ValueError(f"{role} {text!r} is not in the vocabulary")
        self._templates = dict(chat_templates or {})
        added = backend.get_added_tokens_decoder()
        self._added = {index: token.content for index, token in added.items()}
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        kinds = _decoder_kinds(backend)
        self._byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds
        self._marks_spaces = bool(kinds & {"Replace", "Metaspace"})

    @functools.cached_property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included."""
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def _id_of(self, role: str) -> int | None:
        text = self.special_tokens.get(role)
        return None if text is None else self.backend.token_to_id(text)

    @property
    def bos_token_id(self) -> int | None:
        return self._id_of("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self._id_of("eos_token")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; special tokens written out in it are recognized.

        Raises ValueError for anything but a string, and for a string with lone surrogates.
        """
        if not isinstance(text, str):
            raise ValueError(_complaint(text))
        try:
            # `encode` would keep the interpreter's lock until it is done.
            (found,) = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except TypeError:
            raise ValueError(_complaint(text)) from None
        return found.ids

    def encode_batch(
        self, texts: Sequence[str], add_special_tokens: bool = True
    ) -> list[list[int]]:
        """Token ids of every text, in parallel; ValueError naming the index of a bad one."""
        texts = list(texts)
        try:
            found = self.backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        except TypeError:
            bad = next(index for index, text in enumerate(texts) if _complaint(text))
            raise ValueError(f"texts[{bad}]: {_complaint(texts[bad])}") from None
        return [encoding.ids for encoding in found]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`; incomplete characters become U+FFFD."""
        # Unlike `decode`, this lets other threads run meanwhile.
        (text,) = self.backend.decode_batch([list(ids)], skip_special_tokens=skip_special_tokens)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes one token adds to a text, also when they are part of a character."""
        if token_id in self._added:
            return self._added[token_id].encode()
        mark = self.backend.id_to_token(token_id)
        if mark is None:
            return b""
        if self._byte_level:
            table = _byte_of_mark()
            if all(char in table for char in mark):
                return bytes(table[char] for char in mark)
            return mark.encode()
        if self._byte_fallback and len(mark) == 6 and mark.startswith("<0x") and mark[5] == ">":
            return bytes([int(mark[3:5], 16)])
        return (mark.replace(_SPACE_MARK, " ") if self._marks_spaces else mark).encode()

    def token_text(self, token_id: int) -> str:
        """One token for display: no vocabulary marks, a leading space kept, U+FFFD for part of a
        character."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    @property
    def chat_template(self) -> str | None:
        """Text of the default chat template, None if the model has none."""
        return self._templates.get("default")

    def set_chat_template(self, template: str | Path) -> None:
        """Use this template (inline text or the path of a file) from now on.

        Raises ValueError if it does not compile.
        """
        self._templates = {"default": load_template(template)}

    def with_chat_template(self, template: str | Path) -> Tokenizer:
        """Return a copy that uses this template, as `set_chat_template` does."""
        other = copy.copy(self)
        other.set_chat_template(template)
        return other

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | Path | None = None,
        **variables: Any,
    ) -> str:
        """Prompt text of a conversation through the template given or the model's own.

        Raises ValueError without a template, for malformed messages and for template errors.
        """
        if template is not None:
            text: str | None = load_template(template)
        else:
            text = self._templates.get("tool_use") if tools else None
            text = text or self.chat_template
        if text is None:
            raise ValueError(NO_TEMPLATE)
        return render_chat(
            text,
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            **(self.special_tokens | variables),
        )

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: str | Path | None = None,
        **variables: Any,
    ) -> list[int]:
        """Token ids of a conversation; like `render_chat`, then encoded without special tokens.

        The template writes the special tokens (a BOS too) itself.
        """
        text = self.render_chat(messages, add_generation_prompt, tools, template, **variables)
        return self.encode(text, add_special_tokens=False)
