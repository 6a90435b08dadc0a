"""Detokenizer: the text of one sequence, as its tokens arrive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

CONTEXT_TOKENS = 4


def needs_context(tokenizer: Tokenizer) -> bool:
    """Whether the decoder drops a leading space (SentencePiece style), so that the first token of
    an output only keeps its space when decoded behind the prompt."""
    if tokenizer.decoder is None:
        return False
    state: bytes = tokenizer.decoder.__getstate__()
    return b'"Strip"' in state or b'"Metaspace"' in state


class Detokenizer:
    """Turns token ids into text piece by piece.

    The pieces and the last `flush` join to `tokenizer.decode` of all pushed ids. A character
    whose bytes are split over tokens is held until its last byte is there. With `context` (the
    end of the prompt), the pieces join to what the ids add behind that context, which keeps the
    leading space that SentencePiece decoders drop.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        context: Sequence[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._context = list(context[-CONTEXT_TOKENS:])
        self._ids: list[int] = []
        self._sent = 0
        self._pending = False
        self._stream = self._new_stream(self._context)

    def _new_stream(self, ids: list[int]) -> DecodeStream:
        return DecodeStream(ids=ids or None, skip_special_tokens=self._skip)

    def push(self, token_id: int) -> str:
        """The text that `token_id` finishes, possibly empty."""
        self._ids.append(token_id)
        try:
            piece = self._stream.step(self._tokenizer, token_id)
        except Exception as error:
            if "prefix" not in str(error):
                raise
            piece = self._restart(token_id)
        self._pending = piece is None
        if not piece:
            return ""
        self._sent += len(piece)
        return piece

    def flush(self) -> str:
        """The rest, unfinished bytes as U+FFFD; call once, when no token follows."""
        if not self._pending:
            return ""
        self._pending = False
        piece = self._full()[self._sent :]
        self._sent += len(piece)
        return piece

    def _full(self) -> str:
        decode = self._tokenizer.decode
        text = decode([*self._context, *self._ids], skip_special_tokens=self._skip)
        if not self._context:
            return text
        return text[len(decode(self._context, skip_special_tokens=self._skip)) :]

    def _restart(self, token_id: int) -> str:
        """Byte-fallback decoders change text they gave earlier once its run of bytes turns out
        to be invalid. What was sent stays sent; go on behind it."""
        self._stream = self._new_stream([token_id])
        return self._full()[self._sent :]


def decode_each(
    tokenizer: Tokenizer, context: Sequence[int], candidates: Iterable[int]
) -> list[str]:
    """Display text of each candidate on its own behind the same context, special tokens shown.

    A leading space stays a space and no vocabulary marks appear; a candidate that is part of a
    character shows as U+FFFD.
    """
    before = list(context[-CONTEXT_TOKENS:])
    prefix = tokenizer.decode(before, skip_special_tokens=False)
    shown = []
    for token_id in candidates:
        text = tokenizer.decode([*before, token_id], skip_special_tokens=False)
        if prefix.endswith("�") or not text.startswith(prefix):
            text = tokenizer.decode([token_id], skip_special_tokens=False)
        else:
            text = text[len(prefix) :]
        shown.append(text)
    return shown
