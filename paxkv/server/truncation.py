"""Truncation: a prompt cut to its last tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paxkv.engine.config import ResolvedConfig
from paxkv.server.errors import BadRequest
from paxkv.text.tokenizer import Tokenizer
from paxkv.validation import shown

MARGIN = 2


@dataclass(frozen=True)
class Truncation:
    """Keeps the last `num_tokens` of a prompt.

    longest_text: characters that certainly are more tokens than fit; of a longer text only the
    last MARGIN times as many are tokenized.
    """

    num_tokens: int
    longest_text: int

    @classmethod
    def read(
        cls, value: Any, limits: ResolvedConfig, max_tokens: int | None, longest_text: int
    ) -> Truncation | None:
        """From truncate_prompt_tokens: a number, -1 for what leaves room for max_tokens, or None.

        Raises BadRequest for anything else.
        """
        if value is None:
            return None
        most = limits.max_prompt_len
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not (value == -1 or 1 <= value <= most):
            raise BadRequest(
                f"truncate_prompt_tokens must be -1 or an integer from 1 to {most}, got "
                f"{shown(value)}",
                param="truncate_prompt_tokens",
            )
        if value == -1:
            value = max(1, min(most, limits.max_model_len - (max_tokens or 1)))
        return cls(value, longest_text)

    def text(self, tokenizer: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of the end of a text. Raises ValueError for what is no text."""
        end = text[-MARGIN * self.longest_text :]
        return self.ids(tokenizer.encode(end, add_special_tokens))

    def ids(self, ids: list[int]) -> list[int]:
        return ids[-self.num_tokens :]
