"""Write tokenizer_reference.json: what llama.cpp and SentencePiece make of the hostile texts.

Needs `pip install xllamacpp sentencepiece` and the network (for SmolLM2). The SentencePiece model
is trained here on the licence text; the file keeps its vocabulary, so the tests can rebuild it.
"""

from __future__ import annotations

import io
import json
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import hostile_texts
import numpy as np
import sentencepiece
import tiny_models as tiny
import xllamacpp

from convert import resolve
from convert.gguf_header import read_header
from convert.mapped_file import MappedFile
from convert.pre_tokenizers import NAMES

FILE = Path(__file__).with_name("tokenizer_reference.json")
LICENCE = Path(__file__).parents[2] / "LICENSE"


@contextmanager
def llama_cpp(path: Path) -> Iterator[Any]:
    """A function from text to ids, with the file's special tokens added."""
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.warmup, params.port = 64, 1, False, 0
    server = xllamacpp.Server(params)

    def ids(text: str) -> list[int]:
        body = json.dumps({"content": text, "add_special": True, "parse_special": True})
        request = urllib.request.Request(
            server.listening_address + "/tokenize",
            body.encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read())["tokens"]

    yield ids


def write_vocabulary(path: Path, vocabulary: dict[str, Any]) -> Path:
    """A model with this vocabulary (metadata without the prefix tokenizer.ggml)."""

    def metadata(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model(vocabulary["model"])
        writer.add_token_list(vocabulary["tokens"])
        writer.add_token_types(vocabulary["token_type"])
        if "merges" in vocabulary:
            writer.add_token_merges(vocabulary["merges"])
            writer.add_tokenizer_pre(vocabulary["pre"])
        else:
            writer.add_token_scores(vocabulary["scores"])

    weights = tiny.tensors()
    rows = len(vocabulary["tokens"])
    weights["model.embed_tokens.weight"] = np.zeros((rows, tiny.HIDDEN), np.float32)
    return tiny.write_gguf(path, weights, metadata=metadata)


def sentencepiece_vocabulary() -> tuple[sentencepiece.SentencePieceProcessor, dict[str, Any]]:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LICENCE.read_text().splitlines()),
        model_writer=model,
        vocab_size=600,
        model_type="bpe",
        byte_fallback=True,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["<tool>"],
        minloglevel=2,
    )
    spm = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = range(spm.get_piece_size())
    kinds = [
        (spm.is_unknown, gguf.TokenType.UNKNOWN),
        (spm.is_control, gguf.TokenType.CONTROL),
        (spm.is_byte, gguf.TokenType.BYTE),
        (spm.is_unused, gguf.TokenType.UNUSED),
        (lambda piece: spm.id_to_piece(piece) == "<tool>", gguf.TokenType.USER_DEFINED),
        (lambda piece: True, gguf.TokenType.NORMAL),
    ]
    types = [next(int(kind) for holds, kind in kinds if holds(piece)) for piece in pieces]
    return spm, {
        "model": "llama",
        "tokens": [spm.id_to_piece(piece) for piece in pieces],
        "scores": [round(spm.get_score(piece), 3) for piece in pieces],
        "token_type": types,
    }


def main() -> None:
    spm, vocabulary = sentencepiece_vocabulary()
    metadata, _ = read_header(MappedFile(resolve("smollm2-135m")))
    keys = ("model", "tokens", "token_type", "merges")
    smollm2 = {key: metadata[f"tokenizer.ggml.{key}"] for key in keys}
    reference: dict[str, Any] = {"vocabulary": vocabulary, "pre": {}}
    with tempfile.TemporaryDirectory() as folder:
        path = write_vocabulary(Path(folder) / "spm.gguf", vocabulary)
        with llama_cpp(path) as ids:
            reference["llama_cpp"] = [ids(text) for text in hostile_texts.SENTENCEPIECE]
        reference["sentencepiece"] = [[1, *spm.encode(text)] for text in hostile_texts.TEXTS]
        reference["decoded"] = [spm.decode(spm.encode(text)) for text in hostile_texts.TEXTS]
        for name in NAMES:
            path = write_vocabulary(Path(folder) / f"{name}.gguf", smollm2 | {"pre": name})
            with llama_cpp(path) as ids:
                reference["pre"][name] = [ids(text) for text in hostile_texts.BYTE_LEVEL]
    FILE.write_text(json.dumps(reference) + "\n")


if __name__ == "__main__":
    main()
