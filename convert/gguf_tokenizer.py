"""Tokenizers from GGUF metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from gguf import TokenType
from tokenizers import AddedToken, decoders, models, normalizers, processors

from convert.fields import Fields, shown
from convert.gguf_vocabulary import SPECIAL, Vocabulary
from convert.pre_tokenizers import IGNORES_MERGES, pre_tokenizer
from paxkv.text.tokenizer import Tokenizer

_SPACE_MARK = "\u2581"


def _added_tokens(vocabulary: Vocabulary) -> list[AddedToken]:
    """Tokens that are matched in the text before anything else, as whole words."""
    kinds = [(token, vocabulary.kind(index)) for index, token in enumerate(vocabulary.tokens)]
    return [
        AddedToken(token, special=kind in SPECIAL, normalized=False)
        for token, kind in kinds
        if kind in SPECIAL or kind == TokenType.USER_DEFINED
    ]


def _merges(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Pairs of tokens, the best first; ValueError naming one that is not in the vocabulary."""
    key = "merges"
    lines = vocabulary.fields.values.get(key)
    if lines is None:
        raise ValueError("the tokenizer of this GGUF file has no merges (tokenizer.ggml.merges)")
    if not isinstance(lines, list):
        raise vocabulary.fields.wrong(key, "a list of strings")
    pairs = []
    for index, line in enumerate(lines):
        left, gap, right = line.partition(" ") if isinstance(line, str) else ("", "", "")
        known = left in vocabulary.ids and right in vocabulary.ids
        if not gap or not known or left + right not in vocabulary.ids:
            raise ValueError(
                f"{vocabulary.fields.source}: tokenizer.ggml.merges[{index}]={shown(line)} must be "
                "two tokens with a space between them, and a token when joined"
            )
        pairs.append((left, right))
    return pairs


def _byte_level(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    merges = _merges(vocabulary)
    name = vocabulary.fields.text("pre", "default")
    words = pre_tokenizer(name)
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary.ids,
            merges=merges,
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


def _sentencepiece(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    ids, scores = vocabulary.ids, vocabulary.scores
    if scores is None:
        raise ValueError("the tokenizer of this GGUF file has no scores (tokenizer.ggml.scores)")
    unknown = vocabulary.special_tokens.get("unk_token") or next(
        (
            token
            for index, token in enumerate(vocabulary.tokens)
            if vocabulary.kind(index) == TokenType.UNKNOWN
        ),
        None,
    )
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=ids,
            merges=_merges_by_score(vocabulary.tokens, ids, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefixed = vocabulary.fields.flag("add_space_prefix", True)
    steps = [normalizers.Replace(" ", _SPACE_MARK)]
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend(_SPACE_MARK), *steps] if prefixed else steps
    )
    undo = [decoders.Replace(_SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(
        [*undo, decoders.Strip(content=" ", left=1, right=0)] if prefixed else undo
    )
    return backend


def _add_ends(backend: tokenizers.Tokenizer, vocabulary: Vocabulary, bos_by_default: bool) -> None:
    special = vocabulary.special_tokens

    def end(role: str, added: bool) -> list[str]:
        return [special[role]] if added and role in special else []

    before = end("bos_token", vocabulary.fields.flag("add_bos_token", bos_by_default))
    after = end("eos_token", vocabulary.fields.flag("add_eos_token", False))
    if not before and not after:
        return
    backend.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *before, "$B:1", *after],
        special_tokens=[(token, vocabulary.ids[token]) for token in {*before, *after}],
    )


def _templates(metadata: Fields) -> dict[str, str]:
    """Chat templates by name."""
    templates = {}
    if default := metadata.text("tokenizer.chat_template", ""):
        templates["default"] = default
    names = metadata.values.get("tokenizer.chat_templates", [])
    if not isinstance(names, list):
        raise metadata.wrong("tokenizer.chat_templates", "a list of names")
    for name in names:
        templates[str(name)] = metadata.text(f"tokenizer.chat_template.{name}")
    return templates


def gguf_tokenizer(path: Path, metadata: dict[str, Any]) -> Tokenizer:
    """The tokenizer that the file's metadata describes, equal to the original one id for id.

    Raises ValueError if there is none, or for a kind or pre-tokenizer that is not supported.
    """
    vocabulary = Vocabulary(path, metadata)
    kind = vocabulary.fields.text("model", None)
    if kind == "gpt2":
        backend = _byte_level(vocabulary)
        _add_ends(backend, vocabulary, vocabulary.fields.text("pre", "default") in IGNORES_MERGES)
    elif kind == "llama":
        backend = _sentencepiece(vocabulary)
        _add_ends(backend, vocabulary, bos_by_default=True)
    else:
        raise ValueError(
            f"{path}: tokenizer.ggml.model={kind!r} is not supported: gpt2 and llama are"
        )
    backend.add_tokens(_added_tokens(vocabulary))
    return Tokenizer(backend, vocabulary.special_tokens, _templates(Fields(path, metadata)))
