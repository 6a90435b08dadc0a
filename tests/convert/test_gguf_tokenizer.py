"""Tokenizers built from GGUF metadata against llama.cpp and SentencePiece.

The expected ids are stored; make_tokenizer_reference.py wrote them.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import hostile_texts
import pytest

from convert import open_checkpoint, pre_tokenizers
from convert.gguf_header import read_header
from convert.gguf_tokenizer import gguf_tokenizer
from convert.mapped_file import MappedFile
from paxkv.text.tokenizer import Tokenizer

HERE = Path(__file__).parent
REFERENCE = json.loads((HERE / "tokenizer_reference.json").read_text())
PROMPTS = json.loads((HERE / "smollm2_prompts.json").read_text())
MARKS = "\u0120\u010a\u2581"


def build(metadata: dict[str, Any]) -> Tokenizer:
    return gguf_tokenizer(Path("m.gguf"), metadata)


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    fields = REFERENCE["vocabulary"] | {"bos_token_id": 1, "eos_token_id": 2} | changes
    return {f"tokenizer.ggml.{key}": value for key, value in fields.items() if value is not None}


@functools.cache
def sentencepiece() -> Tokenizer:
    return build(sentencepiece_metadata())


@functools.cache
def smollm2_metadata(path: Path) -> dict[str, Any]:
    return read_header(MappedFile(path))[0]


def pairs(texts: list[str], ids: list[list[int]]) -> list[tuple[str, list[int]]]:
    assert len(texts) == len(ids)
    return list(zip(texts, ids))


@pytest.mark.parametrize(
    ("text", "ids"), pairs(hostile_texts.SENTENCEPIECE, REFERENCE["llama_cpp"]), ids=repr
)
def test_sentencepiece_equals_llama_cpp(text: str, ids: list[int]) -> None:
    assert sentencepiece().encode(text) == ids


def test_sentencepiece_equals_the_original() -> None:
    tokenizer = sentencepiece()
    rows = zip(hostile_texts.TEXTS, REFERENCE["sentencepiece"], REFERENCE["decoded"], strict=True)
    for text, ids, decoded in rows:
        assert tokenizer.encode(text) == ids
        assert tokenizer.encode(text, add_special_tokens=False) == ids[1:]
        assert tokenizer.decode(ids) == decoded


def test_planted_merge_order_is_seen() -> None:
    scores = [-score for score in REFERENCE["vocabulary"]["scores"]]
    tokenizer = build(sentencepiece_metadata(scores=scores))
    wrong = [
        text
        for text, ids in pairs(hostile_texts.TEXTS, REFERENCE["sentencepiece"])
        if tokenizer.encode(text) != ids
    ]
    assert wrong


@pytest.mark.parametrize("name", pre_tokenizers.NAMES)
def test_pre_tokenizers_equal_llama_cpp(smollm2: Path, name: str) -> None:
    metadata = dict(smollm2_metadata(smollm2))
    for key in ("add_bos_token", "add_space_prefix"):
        metadata.pop(f"tokenizer.ggml.{key}")
    tokenizer = build(metadata | {"tokenizer.ggml.pre": name})
    for text, ids in pairs(hostile_texts.BYTE_LEVEL, REFERENCE["pre"][name]):
        assert tokenizer.encode(text) == ids, text


def test_smollm2_equals_the_original(smollm2: Path) -> None:
    tokenizer = open_checkpoint(smollm2).tokenizer()
    for row in PROMPTS:
        assert tokenizer.encode(row["prompt"]) == row["prompt_token_ids"]
    assert tokenizer.vocab_size == 49152
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.special_ids == frozenset(range(17))
    assert tokenizer.encode("2024") == tokenizer.encode("2") + tokenizer.encode("0") + [
        *tokenizer.encode("2"),
        *tokenizer.encode("4"),
    ]


def test_smollm2_chat(smollm2: Path) -> None:
    tokenizer = open_checkpoint(smollm2).tokenizer()
    text = tokenizer.render_chat([{"role": "user", "content": "Hi"}])
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert ids[:2] == [1, 9690]
    assert ids.count(2) == 2


def test_bytes_of_tokens_join_to_the_text(smollm2: Path) -> None:
    tokenizer = open_checkpoint(smollm2).tokenizer()
    for text in hostile_texts.BYTE_LEVEL:
        ids = tokenizer.encode(text)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
        assert not any(mark in tokenizer.token_text(token) for token in ids for mark in MARKS)


def test_bytes_of_sentencepiece_tokens_join_to_the_text() -> None:
    tokenizer = sentencepiece()
    for text in hostile_texts.TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        joined = b"".join(map(tokenizer.token_bytes, ids))
        assert joined == (" " + text if text else text).encode()
        assert not any(mark in tokenizer.token_text(token) for token in ids for mark in MARKS)
    assert tokenizer.token_bytes(tokenizer.encode("今", add_special_tokens=False)[1]) == b"\xe4"


def test_ends_are_added_as_the_file_says() -> None:
    text = "this License"
    plain = sentencepiece().encode(text, add_special_tokens=False)

    def encode(**changes: Any) -> list[int]:
        return build(sentencepiece_metadata(**changes)).encode(text)

    assert encode() == [1, *plain]
    assert encode(add_bos_token=False) == plain
    assert encode(add_bos_token=False, add_eos_token=True) == [*plain, 2]
    assert encode(add_eos_token=True) == [1, *plain, 2]


def test_space_prefix_can_be_off() -> None:
    tokenizer = build(sentencepiece_metadata(add_space_prefix=False))
    ids = tokenizer.encode("License  x", add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == b"License  x"
    assert tokenizer.decode(ids) == "License  x"


def test_user_defined_tokens_are_not_special() -> None:
    tokenizer = sentencepiece()
    index = REFERENCE["vocabulary"]["tokens"].index("<tool>")
    assert index not in tokenizer.special_ids
    assert {0, 1, 2} <= tokenizer.special_ids
    assert tokenizer.decode([1, index]) == "<tool>"


def test_chat_templates_of_the_file() -> None:
    metadata = sentencepiece_metadata()
    assert build(metadata).chat_template is None
    metadata["tokenizer.chat_template"] = "{{ messages[0].content }}"
    metadata["tokenizer.chat_templates"] = ["tool_use"]
    metadata["tokenizer.chat_template.tool_use"] = "{{ tools | length }} tools"
    tokenizer = build(metadata)
    messages = [{"role": "user", "content": "Hi"}]
    assert tokenizer.render_chat(messages) == "Hi"
    assert tokenizer.render_chat(messages, tools=[{"type": "function"}]) == "1 tools"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, r"tokenizer\.ggml\.model='bert' is not supported"),
        ({"tokens": None}, "holds no tokenizer"),
        ({"scores": None}, "no scores"),
        ({"model": "gpt2"}, "no merges"),
        ({"model": "gpt2", "merges": [], "pre": "zzz"}, "pre='zzz'.*smollm"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(sentencepiece_metadata(**changes))
