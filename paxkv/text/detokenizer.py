"""Detokenizer: the text of one sequence, token by token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

CONTEXT_TOKENS = 4
SILENT_TOKENS = 16


def needs_context(tokenizer: Tokenizer) -> bool:
    """Whether the decoder drops a leading space (SentencePiece style), so that the first token of
    an output only keeps its space when decoded behind the prompt."""
    if tokenizer.decoder is None:
        return False
    state: bytes = tokenizer.decoder.__getstate__()
    return b'"Strip"' in state or b'"Metaspace"' in state


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Whether a text is the concatenated bytes of its tokens."""
    return tokenizer.decoder is not None and b'"ByteLevel"' in tokenizer.decoder.__getstate__()


class Detokenizer:
    """Turn token ids into text piece by piece.

    The pieces and the last `flush` join to `tokenizer.decode` of all pushed ids. A character
    whose bytes are split over tokens is held until its last byte arrives; if a byte-level token
    finishes some text and begins a character, only the character is held. With `context` (the
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
        self._pending: list[int] = []
        self._early = 0
        self._anchor = self._context
        self._silent = False
        self._stream = self._new_stream(self._context)

    def copy(self) -> Detokenizer:
        """Return an independent copy in the same state."""
        other = copy(self)
        other._stream = copy(self._stream)
        other._ids, other._pending = list(self._ids), list(self._pending)
        return other

    def _new_stream(self, ids: list[int]) -> DecodeStream:
        return DecodeStream(ids=ids or None, skip_special_tokens=self._skip)

    def push(self, token_id: int) -> str:
        """Take a token; return the text it finishes, possibly empty."""
        self._ids.append(token_id)
        try:
            piece = self._stream.step(self._tokenizer, token_id)
        except Exception as error:
            if "prefix" not in str(error):
                raise
            piece = self._restart(token_id)
        if piece is None:
            piece = self._hold(token_id)
        elif self._pending or self._silent:
            piece = piece[self._early :]
            self._pending, self._early, self._silent = [], 0, False
        self._sent += len(piece)
        return piece

    def _hold(self, token_id: int) -> str:
        """Keep a token that finished no text; return its text before an unfinished character."""
        if not self._pending and not self._silent:
            self._anchor = [*self._context, *self._ids[-CONTEXT_TOKENS - 1 : -1]]
        self._pending.append(token_id)
        byte_level = is_byte_level(self._tokenizer)
        if not byte_level and len(self._pending) < SILENT_TOKENS:
            return ""
        text = self._tokenizer.decode(self._pending, skip_special_tokens=self._skip)
        if not text and len(self._pending) >= SILENT_TOKENS:
            # Skipped special tokens: the stream would decode its growing run again each time.
            self._stream = self._new_stream(self._anchor)
            self._pending, self._silent = [], True
        piece = text.rstrip("\ufffd")[self._early :] if byte_level else ""
        self._early += len(piece)
        return piece

    def flush(self) -> str:
        """Return the rest, unfinished bytes as U+FFFD; call once, when no token follows."""
        if not self._pending:
            return ""
        self._pending = []
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
        """Restart the stream behind what was sent: byte-fallback decoders change earlier text
        once its run of bytes turns out to be invalid."""
        self._stream = self._new_stream([token_id])
        self._pending, self._early = [], 0
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
