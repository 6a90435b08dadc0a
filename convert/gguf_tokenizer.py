"""A tokenizer from GGUF metadata."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import tokenizers
from gguf import TokenType
from tokenizers import AddedToken, decoders, models, normalizers, processors

from convert.pre_tokenizers import IGNORES_MERGES, pre_tokenizer
from paxkv.text.tokenizer import Tokenizer

_SPACE_MARK = "\u2581"
_ROLES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
    "seperator": "sep_token",  # spelt so in the format
    "mask": "mask_token",
}
_SPECIAL = (TokenType.CONTROL, TokenType.UNKNOWN)


class _Vocabulary:
    """The tokenizer's part of a file's metadata."""

    def __init__(self, path: Path, metadata: dict[str, Any]) -> None:
        self._metadata = metadata
        tokens = self.get("tokens")
        if tokens is None:
            raise ValueError(f"{path} holds no tokenizer (tokenizer.ggml.tokens)")
        self.tokens: list[str] = list(tokens)
        self.ids = {token: index for index, token in enumerate(tokens)}
        self.types: list[int] = list(self.get("token_type") or [TokenType.NORMAL] * len(tokens))
        # Converters fill the vocabulary up to the embedding's rows.
        while self.types and self.types[-1] == TokenType.UNUSED:
            self.ids.pop(self.tokens.pop(), None)
            self.types.pop()

    def get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}", default)

    def special_tokens(self) -> dict[str, str]:
        ids = {role: self.get(f"{key}_token_id") for key, role in _ROLES.items()}
        return {
            role: self.tokens[index]
            for role, index in ids.items()
            if index is not None and 0 <= index < len(self.tokens)
        }

    def added_tokens(self) -> list[AddedToken]:
        """Tokens that are matched in the text before anything else, as whole words."""
        return [
            AddedToken(token, special=kind in _SPECIAL, normalized=False)
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind in _SPECIAL or kind == TokenType.USER_DEFINED
        ]


def _byte_level(vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    merges = vocabulary.get("merges")
    if merges is None:
        raise ValueError("the tokenizer of this GGUF file has no merges (tokenizer.ggml.merges)")
    name = vocabulary.get("pre", "default")
    words = pre_tokenizer(name)
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary.ids,
            merges=[tuple(pair.split(" ", 1)) for pair in merges],
            ignore_merges=name in IGNORES_MERGES,
        )
    )
    backend.pre_tokenizer = words
    backend.decoder = decoders.ByteLevel()
    return backend


def _merges_by_score(tokens: list[str], ids: dict[str, int], scores: list[float]) -> list[Any]:
    """Merges that give SentencePiece's BPE result: best score of the merged piece first."""
    ranked = []
    for index, token in enumerate(tokens):
        local = [
            (ids[left], ids[right])
            for left, right in ((token[:cut], token[cut:]) for cut in range(1, len(token)))
            if left in ids and right in ids
        ]
        ranked += [(-scores[index], pair) for pair in sorted(local)]
    ranked.sort(key=lambda entry: entry[0])
    return [(tokens[left], tokens[right]) for _, (left, right) in ranked]


def _sentencepiece(vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    scores = vocabulary.get("scores")
    if scores is None:
        raise ValueError("the tokenizer of this GGUF file has no scores (tokenizer.ggml.scores)")
    unknown = vocabulary.special_tokens().get("unk_token") or next(
        itertools.chain(
            (
                token
                for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True)
                if kind == TokenType.UNKNOWN
            ),
            [None],
        )
    )
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary.ids,
            merges=_merges_by_score(vocabulary.tokens, vocabulary.ids, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefixed = vocabulary.get("add_space_prefix", True)
    steps = [normalizers.Replace(" ", _SPACE_MARK)]
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend(_SPACE_MARK), *steps] if prefixed else steps
    )
    undo = [decoders.Replace(_SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(
        [*undo, decoders.Strip(content=" ", left=1, right=0)] if prefixed else undo
    )
    return backend


def _add_ends(backend: tokenizers.Tokenizer, vocabulary: _Vocabulary, bos_by_default: bool) -> None:
    special = vocabulary.special_tokens()
    before = [special["bos_token"]] * bool(
        vocabulary.get("add_bos_token", bos_by_default) and "bos_token" in special
    )
    after = [special["eos_token"]] * bool(
        vocabulary.get("add_eos_token", False) and "eos_token" in special
    )
    if not before and not after:
        return
    backend.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *before, "$B:1", *after],
        special_tokens=[(token, vocabulary.ids[token]) for token in {*before, *after}],
    )


def gguf_tokenizer(path: Path, metadata: dict[str, Any]) -> Tokenizer:
    """The tokenizer that the file's metadata describes, equal to the original one id for id.

    Raises ValueError if there is none, or for a kind or pre-tokenizer that is not supported.
    """
    vocabulary = _Vocabulary(path, metadata)
    kind = vocabulary.get("model")
    if kind == "gpt2":
        backend = _byte_level(vocabulary)
        _add_ends(backend, vocabulary, vocabulary.get("pre") in IGNORES_MERGES)
    elif kind == "llama":
        backend = _sentencepiece(vocabulary)
        _add_ends(backend, vocabulary, bos_by_default=True)
    else:
        raise ValueError(
            f"{path}: tokenizer.ggml.model={kind!r} is not supported: gpt2 and llama are"
        )
    backend.add_tokens(vocabulary.added_tokens())
    templates = {}
    if metadata.get("tokenizer.chat_template"):
        templates["default"] = metadata["tokenizer.chat_template"]
    for name in metadata.get("tokenizer.chat_templates", []):
        templates[name] = metadata[f"tokenizer.chat_template.{name}"]
    return Tokenizer(backend, vocabulary.special_tokens(), templates)
