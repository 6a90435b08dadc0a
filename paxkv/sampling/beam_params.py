"""BeamSearchParams: one beam search, under Hugging Face's rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paxkv.sampling import checks
from paxkv.sampling.params import (
    INT32_MAX,
    EarlyStopping,
    SamplingParams,
    early_stopping,
    length_penalty,
)

MAX_BEAMS = 1_024


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams:
    """A beam search of `beam_width` beams of at most `max_tokens` tokens each.

    length_penalty: exponent of the length a finished beam's score is divided by.
    early_stopping: True stops at `beam_width` finished beams, False when no running beam is
        likely to be better, "never" when none can be (Hugging Face's three rules).
    stop: strings that finish a beam, one or a list. They are looked for in its output alone.
    temperature: only 0 (the scores are the model's own); kept because vLLM has it.
    For anything else, `SamplingParams(use_beam_search=True, ...)` searches too.
    A wrong value is a ValueError which names the argument, the value and the allowed range.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    include_stop_str_in_output: bool = False
    stop: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        checked: dict[str, object] = {
            "beam_width": checks.integer("beam_width", self.beam_width, 1, MAX_BEAMS),
            "max_tokens": checks.integer("max_tokens", self.max_tokens, 1, INT32_MAX),
            "ignore_eos": checks.boolean("ignore_eos", self.ignore_eos),
            "temperature": checks.number("temperature", self.temperature, 0.0, 0.0, "0"),
            "length_penalty": length_penalty(self.length_penalty),
            "early_stopping": early_stopping(self.early_stopping),
            "include_stop_str_in_output": checks.boolean(
                "include_stop_str_in_output", self.include_stop_str_in_output
            ),
        }
        checked["stop"] = checks.strings("stop", self.stop, single=True)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def sampling_params(self) -> SamplingParams:
        """The same as an ordinary request's parameters."""
        return SamplingParams(
            n=self.beam_width,
            use_beam_search=True,
            temperature=0.0,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
            include_stop_str_in_output=self.include_stop_str_in_output,
            stop=self.stop,
        )
