"""Small tokenizers built in the tests: byte-level BPE, and SentencePiece style with bytes."""

from __future__ import annotations

import functools

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = [
    "the cat sat on the mat, and the dog ran after the cat.",
    "hello world, this is a small corpus of words",
    "今天的天气很好, 今天天气",
    "Příliš žluťoučký kůň úpěl ďábelské ódy",
    "\U0001f9d1\u200d\U0001f680 \U0001f1ef\U0001f1f5 \U0001f600 ok",
]


@functools.cache
def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 20, trainer)
    return tokenizer


@functools.cache
def byte_fallback() -> Tokenizer:
    """SentencePiece style: words start with ▁, unknown characters fall back to byte tokens."""
    words = ["<unk>", "▁", "▁the", "▁cat", "cat", "s", "▁a", "a", "b", "c", "▁dog", "."]
    vocabulary = {word: index for index, word in enumerate(words)}
    vocabulary |= {f"<0x{byte:02X}>": len(words) + byte for byte in range(256)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def byte_token(byte: int) -> int:
    """Id of the byte token in `byte_fallback`."""
    return 12 + byte
