"""ContextLengthExceeded: a prompt that does not fit."""

from __future__ import annotations


class ContextLengthExceeded(ValueError):
    """Error of a prompt that does not fit, in the words that clients of OpenAI's API look for.

    most: tokens of prompt and answer together. what: is too long, as a clause. name: of the input.
    """

    def __init__(self, most: int, what: str, name: str = "prompt") -> None:
        super().__init__(
            f"This model's maximum context length is {most} tokens. However, {what}. "
            f"Please reduce the length of the {name}."
        )
