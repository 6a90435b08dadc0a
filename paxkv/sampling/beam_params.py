"""BeamSearchParams: one beam search, under Hugging Face's rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paxkv.sampling import checks
from paxkv.sampling.params import INT32_MAX

MAX_BEAMS = 1_024


@dataclass(frozen=True, kw_only=True)
class BeamSearchParams:
    """A beam search of `beam_width` beams of at most `max_tokens` tokens each.

    length_penalty: exponent of the length a finished beam's score is divided by.
    early_stopping: True stops at `beam_width` finished beams, False when no running beam is
        likely to be better, "never" when none can be (Hugging Face's three rules).
    temperature: only 0 (the scores are the model's own); kept because vLLM has it.
    A wrong value is a ValueError which names the argument, the value and the allowed range.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        if self.early_stopping != "never" and not isinstance(self.early_stopping, bool):
            raise checks.refuse("early_stopping", self.early_stopping, 'True, False or "never"')
        checked: dict[str, object] = {
            "beam_width": checks.integer("beam_width", self.beam_width, 1, MAX_BEAMS),
            "max_tokens": checks.integer("max_tokens", self.max_tokens, 1, INT32_MAX),
            "ignore_eos": checks.boolean("ignore_eos", self.ignore_eos),
            "temperature": checks.number("temperature", self.temperature, 0.0, 0.0, "0"),
            "length_penalty": checks.number(
                "length_penalty", self.length_penalty, -100.0, 100.0, "a number from -100 to 100"
            ),
            "include_stop_str_in_output": checks.boolean(
                "include_stop_str_in_output", self.include_stop_str_in_output
            ),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
