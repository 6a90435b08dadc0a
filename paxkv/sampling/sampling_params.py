"""SamplingParams: sampling options of one request, validated at construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from paxkv import validation as checks
from paxkv.sampling.structured_outputs import StructuredOutputsParams

GREEDY_BELOW = 1e-5
MAX_CHILDREN = 16_384
MAX_LOGIT_BIAS = 1_024
MAX_BIAS = 1e6
INT32_MAX = 2**31 - 1

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen and when they end.

    Field names and defaults are vLLM's. A wrong value is a ValueError which names the argument,
    the value and the allowed range. Ids are checked against the model's output width by
    `validate_for`, which the engine calls before any work.

    n: sequences returned. best_of: sequences sampled, of which the n with the best
        cumulative_logprob are returned (at least n; None means n).
    presence_penalty, frequency_penalty: [-2, 2], over the output's tokens only.
    repetition_penalty: [1e-6, 1e6], over prompt and output, Hugging Face's rule.
    temperature: [0, 1e6]; below 1e-5 is greedy.
    top_p: [0, 1], 0 is greedy. top_k: 0 and -1 are off, 1 is greedy, above the vocabulary is off.
    min_p: [0, 1], relative to the most likely token.
    top_n_sigma: keep tokens whose logit, before temperature, is at most so many standard deviations
        of all logits below the largest; None, 0 and negative numbers are off.
    seed: 64 bits, signed or unsigned; None and -1 sample from the engine's own seed.
    stop: one string or a list. stop_token_ids: they end the request even under ignore_eos.
    bad_words: strings never generated. logit_bias: {token id: bias}, at most 1,024 entries.
    allowed_token_ids: if given, nothing else is ever sampled.
    max_tokens: at least 1; None takes the room left in max_model_len.
    min_tokens: no end id and no stop string before that many tokens.
    logprobs, prompt_logprobs: alternatives per position besides the chosen token; 0 is the
        chosen token alone, -1 the whole vocabulary (where the engine's max_logprobs allows it).
    priority: larger runs first (vLLM's order is the opposite).
    enable_prefix_caching: False neither reads nor leaves cached blocks; None follows the engine.
    use_beam_search: search with best_of (or n) beams and return the n best; temperature must be 0.
        Edits of the logits (penalties, bias, bans) change the log-probabilities of the beams.
    length_penalty, early_stopping: of a beam search, as in `BeamSearchParams`.
    structured_outputs: the form of the answer, as `StructuredOutputsParams` or a mapping of its
        fields. It ends with finish_reason "stop" when nothing can be added.
    """

    n: int = 1
    best_of: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    top_n_sigma: float | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    priority: int = 0
    enable_prefix_caching: bool | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, value in self._checked().items():
            object.__setattr__(self, name, value)
        self._check_beams()

    def _checked(self) -> dict[str, object]:
        """Validate; return every field as stored: lists as tuples, numbers as int and float."""
        n = checks.integer("n", self.n, 1, MAX_CHILDREN)
        best_of = self.best_of
        if best_of is not None:
            allowed = f"None or an integer from n={n} to {MAX_CHILDREN}"
            best_of = checks.integer("best_of", best_of, n, MAX_CHILDREN, allowed)
        max_tokens = self.max_tokens
        if max_tokens is not None:
            allowed = f"None or an integer from 1 to {INT32_MAX}"
            max_tokens = checks.integer("max_tokens", max_tokens, 1, INT32_MAX, allowed)
        min_tokens = checks.integer("min_tokens", self.min_tokens, 0, INT32_MAX)
        if max_tokens is not None and min_tokens > max_tokens:
            raise checks.refuse("min_tokens", min_tokens, f"at most max_tokens={max_tokens}")
        detokenize = checks.boolean("detokenize", self.detokenize)
        stop = checks.strings("stop", self.stop, single=True)
        if stop and not detokenize:
            raise checks.refuse("stop", self.stop, "empty when detokenize=False")
        caching = self.enable_prefix_caching
        return {
            "n": n,
            "best_of": best_of,
            "presence_penalty": _penalty("presence_penalty", self.presence_penalty),
            "frequency_penalty": _penalty("frequency_penalty", self.frequency_penalty),
            "repetition_penalty": checks.number(
                "repetition_penalty",
                self.repetition_penalty,
                1e-6,
                1e6,
                "a number from 1e-6 to 1e6",
            ),
            "temperature": checks.number(
                "temperature", self.temperature, 0.0, 1e6, "a number from 0 to 1e6"
            ),
            "top_p": checks.number("top_p", self.top_p, 0.0, 1.0, "a number from 0 to 1"),
            "top_k": checks.integer(
                "top_k",
                self.top_k,
                -1,
                2**63 - 1,
                "0 or -1 (off) or an integer from 1 to 2**63 - 1",
            ),
            "min_p": checks.number("min_p", self.min_p, 0.0, 1.0, "a number from 0 to 1"),
            "top_n_sigma": _top_n_sigma(self.top_n_sigma),
            "seed": _seed(self.seed),
            "stop": stop,
            "stop_token_ids": _ids("stop_token_ids", self.stop_token_ids),
            "bad_words": checks.strings("bad_words", self.bad_words),
            "include_stop_str_in_output": checks.boolean(
                "include_stop_str_in_output", self.include_stop_str_in_output
            ),
            "ignore_eos": checks.boolean("ignore_eos", self.ignore_eos),
            "max_tokens": max_tokens,
            "min_tokens": min_tokens,
            "logprobs": _alternatives("logprobs", self.logprobs),
            "prompt_logprobs": _alternatives("prompt_logprobs", self.prompt_logprobs),
            "detokenize": detokenize,
            "skip_special_tokens": checks.boolean("skip_special_tokens", self.skip_special_tokens),
            "logit_bias": _logit_bias(self.logit_bias),
            "allowed_token_ids": _allowed_token_ids(self.allowed_token_ids),
            "priority": checks.integer("priority", self.priority, -(2**31), INT32_MAX),
            "enable_prefix_caching": (
                None if caching is None else checks.boolean("enable_prefix_caching", caching)
            ),
            "use_beam_search": checks.boolean("use_beam_search", self.use_beam_search),
            "length_penalty": length_penalty(self.length_penalty),
            "early_stopping": early_stopping(self.early_stopping),
            "structured_outputs": _structured_outputs(self.structured_outputs),
        }

    def _check_beams(self) -> None:
        """Refuse what contradicts use_beam_search, or means nothing without it."""
        rules: tuple[tuple[str, bool, str], ...]
        if self.use_beam_search:
            rules = (
                ("temperature", self.temperature == 0.0, "0"),
                ("top_p", self.top_p == 1.0, "1"),
                ("top_k", self.top_k in (0, -1), "0 or -1"),
                ("min_p", self.min_p == 0.0, "0"),
                ("top_n_sigma", (self.top_n_sigma or 0.0) <= 0.0, "None or 0"),
                ("logprobs", self.logprobs is None, "None"),
                ("structured_outputs", self.structured_outputs is None, "None"),
            )
        else:
            rules = (
                ("length_penalty", self.length_penalty == 1.0, "1"),
                ("early_stopping", self.early_stopping is False, "False"),
            )
        for name, holds, allowed in rules:
            if not holds:
                allowed += f" when use_beam_search={self.use_beam_search}"
                raise checks.refuse(name, getattr(self, name), allowed)

    def validate_for(self, vocab_size: int, max_logprobs: int = 20) -> None:
        """Check ids against the output width and logprobs against the engine's limit.

        vocab_size: width of the logits, in tokens. max_logprobs: -1 means no limit.
        """
        highest = vocab_size - 1
        for name in ("stop_token_ids", "allowed_token_ids"):
            checks.token_ids(name, getattr(self, name) or (), highest)
        checks.token_ids("logit_bias", tuple(self.logit_bias or ()), highest)
        limit = vocab_size if max_logprobs == -1 else min(max_logprobs, vocab_size)
        for name in ("logprobs", "prompt_logprobs"):
            wanted = getattr(self, name)
            if wanted is None:
                continue
            if (vocab_size if wanted == -1 else wanted) > limit:
                raise checks.refuse(name, wanted, f"None or an integer from 0 to {limit}")

    @property
    def greedy(self) -> bool:
        """Whether every token is the most likely one, so that nothing is sampled."""
        cold = on_device(self.temperature) < on_device(GREEDY_BELOW)
        return cold or self.top_k == 1 or on_device(self.top_p) == 0.0

    @cached_property
    def children(self) -> int:
        """Sequences sampled: best_of, or n."""
        return self.best_of or self.n

    @cached_property
    def has_penalty(self) -> bool:
        return (
            on_device(self.presence_penalty) != 0.0
            or on_device(self.frequency_penalty) != 0.0
            or on_device(self.repetition_penalty) != 1.0
        )


def on_device(value: float) -> float:
    """`value` as the device reads it: in float32, subnormal numbers as zero.

    The host compares with thresholds only after this, so that both sides decide alike.
    """
    rounded = np.float32(value)
    return 0.0 if abs(rounded) < np.finfo(np.float32).tiny else float(rounded)


def _penalty(name: str, value: object) -> float:
    return checks.number(name, value, -2.0, 2.0, "a number from -2 to 2")


def _top_n_sigma(value: object) -> float | None:
    if value is None:
        return None
    allowed = "None or a number from -1e6 to 1e6"
    return checks.number("top_n_sigma", value, -1e6, 1e6, allowed)


def length_penalty(value: object) -> float:
    return checks.number("length_penalty", value, -100.0, 100.0, "a number from -100 to 100")


def early_stopping(value: object) -> EarlyStopping:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value == "never":
        return "never"
    raise checks.refuse("early_stopping", value, 'True, False or "never"')


def _seed(value: object) -> int | None:
    if value is None or value == -1:
        return None
    allowed = "None or an integer of 64 bits, from -2**63 to 2**64 - 1"
    return checks.integer("seed", value, -(2**63), 2**64 - 1, allowed)


def _structured_outputs(value: object) -> StructuredOutputsParams | None:
    if value is None or isinstance(value, StructuredOutputsParams):
        return value
    fields = tuple(StructuredOutputsParams.__dataclass_fields__)
    if not isinstance(value, Mapping):
        raise checks.refuse("structured_outputs", value, f"a mapping of one of {', '.join(fields)}")
    unknown = [name for name in value if name not in fields]
    if unknown:
        raise checks.refuse("structured_outputs", unknown[0], f"one of {', '.join(fields)}")
    return StructuredOutputsParams(**value)


def _ids(name: str, value: object) -> tuple[int, ...]:
    return () if value is None else checks.token_ids(name, value, INT32_MAX)


def _allowed_token_ids(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    allowed = checks.token_ids("allowed_token_ids", value, INT32_MAX)
    if not allowed:
        raise checks.refuse("allowed_token_ids", value, "None or a list of at least one token id")
    return allowed


def _alternatives(name: str, value: object) -> int | None:
    if value is None:
        return None
    allowed = f"None, -1 (the whole vocabulary) or an integer from 0 to {INT32_MAX}"
    return checks.integer(name, value, -1, INT32_MAX, allowed)


def _logit_bias(value: object) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise checks.refuse("logit_bias", value, "a mapping of token ids to numbers")
    if len(value) > MAX_LOGIT_BIAS:
        raise checks.refuse("logit_bias", value, f"a mapping of at most {MAX_LOGIT_BIAS} entries")
    ids = checks.token_ids("logit_bias", list(value), INT32_MAX)
    allowed = f"a number from {-MAX_BIAS:g} to {MAX_BIAS:g}"
    return {
        token: checks.number(f"logit_bias[{token}]", bias, -MAX_BIAS, MAX_BIAS, allowed)
        for token, bias in zip(ids, value.values(), strict=True)
    }


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
