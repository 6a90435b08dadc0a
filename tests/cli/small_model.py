"""A folder with a whole small model, tokenizer included, as a command line names one."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from tests.convert import tiny_models

WORDS = tiny_models.CONFIG["vocab_size"]
FLAGS = "--max-num-seqs 4 --num-gpu-blocks-override 60 --enforce-eager --compilation-cache-dir="


def write_small_model(folder: Path) -> Path:
    """Its words are w0 to w95; it has no chat template."""
    tiny_models.write_hf(folder, tiny_models.tensors())
    vocabulary = {f"w{number}": number for number in range(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
