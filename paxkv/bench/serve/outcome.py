"""Outcome: result and timing of one request."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Outcome:
    """Seconds since the run began, and lengths of time, by the client's clock.

    start: when it was sent. first_token, end: None if that never came. chunk_times: when each
    piece of the answer came, of all its sequences. prompt_tokens, output_tokens: as the server
    counts them. num_sequences: answers asked for. error: "" for a success.
    """

    start: float
    first_token: float | None = None
    end: float | None = None
    chunk_times: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    num_sequences: int = 1
    text: str = ""
    error: str = ""

    @property
    def succeeded(self) -> bool:
        return not self.error and self.end is not None

    @property
    def ttft(self) -> float:
        """Time to first token; the whole latency if the answer came in one piece."""
        first = self.first_token if self.first_token is not None else self.end
        return 0.0 if first is None else first - self.start

    @property
    def latency(self) -> float:
        return 0.0 if self.end is None else self.end - self.start

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, None for an answer of one token."""
        tokens = self.output_tokens / self.num_sequences
        return (self.latency - self.ttft) / (tokens - 1) if tokens > 1 else None

    @property
    def itls(self) -> list[float]:
        """Times between the pieces of the answer."""
        return [b - a for a, b in zip(self.chunk_times, self.chunk_times[1:])]
