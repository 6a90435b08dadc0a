"""Validation: prompts and parameters in, requests out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from paxkv.engine.beam.request import BeamRequest
from paxkv.engine.embedding import EmbeddingRequest, PoolingParams
from paxkv.engine.engine import Engine
from paxkv.engine.request import Request
from paxkv.models.config import ModelConfig
from paxkv.sampling.allowed_tokens import AllowedTokens, bad_word_sequences
from paxkv.sampling.sampling_params import SamplingParams
from paxkv.sampling.structured_outputs import FormError
from paxkv.text.detokenizer import needs_context
from paxkv.text.grammar import Grammar, Grammars
from paxkv.text.stop import StopRules
from paxkv.text.tokenizer import Tokenizer

LOGPROBS = ("logprobs", "prompt_logprobs")
P = TypeVar("P")
R = TypeVar("R")

ONE_TOKEN = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
PROMPT_KEYS = ("prompt", "prompt_token_ids", "cache_salt")


class InputProcessor:
    """Checks prompts and parameters against the model and the engine, and makes requests."""

    def __init__(self, engine: Engine, model: ModelConfig, tokenizer: Tokenizer | None) -> None:
        self._model = model
        self._config = engine.config
        self._tokenizer = tokenizer
        self._numbers = itertools.count()  # its next() is one step for other threads

    def requests(
        self, prompts: Sequence[Any], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Request]:
        """A request for each prompt; a ValueError names the index of the first bad one."""
        if isinstance(params, SamplingParams):
            params = [params] * len(prompts)
        if not isinstance(params, list | tuple):
            raise ValueError(
                "sampling_params must be SamplingParams or a list of them, got "
                f"{type(params).__name__}"
            )
        each = list(params)
        if len(each) != len(prompts):
            raise ValueError(f"{len(each)} sampling_params for {len(prompts)} prompts")
        return _each(self.request, prompts, each)

    def embeddings(self, prompts: Sequence[Any], params: PoolingParams) -> list[EmbeddingRequest]:
        """An embedding request for each prompt, with errors like those of `requests`."""
        return _each(self.embedding, prompts, [params] * len(prompts))

    def request(
        self,
        prompt: Any,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        cache_salt: str | None = None,
    ) -> Request:
        """Make one request. Raises ValueError naming what is wrong with it."""
        if not isinstance(params, SamplingParams):
            raise ValueError(f"sampling_params must be SamplingParams, got {type(params).__name__}")
        kind = BeamRequest if params.use_beam_search else Request
        return kind(**self._checked(prompt, params, request_id, cache_salt))

    def embedding(
        self,
        prompt: Any,
        params: PoolingParams,
        *,
        request_id: str | None = None,
        cache_salt: str | None = None,
    ) -> EmbeddingRequest:
        """Make an embedding request. Raises ValueError naming what is wrong with it."""
        if not isinstance(params, PoolingParams):
            raise ValueError(f"pooling_params must be PoolingParams, got {type(params).__name__}")
        checked = self._checked(prompt, ONE_TOKEN, request_id, cache_salt)
        return EmbeddingRequest(**checked, pooling=params)

    def _checked(
        self, prompt: Any, params: SamplingParams, request_id: str | None, cache_salt: str | None
    ) -> dict[str, Any]:
        """Validate everything; return the fields of a request."""
        text, ids = self._prompt(prompt)
        if isinstance(prompt, Mapping) and cache_salt is None:
            cache_salt = prompt.get("cache_salt")
        if cache_salt is not None and not isinstance(cache_salt, str):
            raise ValueError(f"cache_salt must be a string or None, got {cache_salt!r:.60}")
        params.validate_for(self._model.vocab_size, self._config.max_logprobs)
        every: dict[str, Any] = {
            n: self._model.vocab_size for n in LOGPROBS if getattr(params, n) == -1
        }
        params = replace(params, **every) if every else params
        self._check_children(params)
        room = self._config.max_model_len - len(ids)
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        rules = self._rules(params, max_tokens)
        allowed = AllowedTokens(
            params, self._model.vocab_size, rules.end_ids, self._bad_words(params)
        )
        number = next(self._numbers)
        return {
            "request_id": request_id if request_id is not None else str(number),
            "prompt": text,
            "prompt_token_ids": ids,
            "sampling_params": params,
            "seed": self._seed(params, number),
            "max_tokens": max_tokens,
            "rules": rules,
            "allowed": allowed,
            "vocab_size": self._model.vocab_size,
            "tokenizer": self._tokenizer,
            "detokenizer_context": self._needs_context,
            "grammar": self._grammar(params),
            "cache_salt": cache_salt,
        }

    def _check_children(self, params: SamplingParams) -> None:
        name = "best_of" if params.best_of else "n"
        limits = ["max_num_seqs"]
        if params.use_beam_search:
            name = f"beam_width ({name})"
            limits.append("max_beam_width")
        if params.children > 1 and not self._config.shares_pages:
            raise ValueError(
                f"{name}={params.children} must be 1 with allocation='contiguous': its "
                "reservations share no pages"
            )
        for limit in limits:
            most = getattr(self._config, limit)
            if params.children > most:
                raise ValueError(f"{name}={params.children} must be at most {limit}={most}")

    def _prompt(self, prompt: Any) -> tuple[str | None, list[int]]:
        text = None
        if isinstance(prompt, str):
            text = prompt
        elif isinstance(prompt, Mapping):
            unknown = [key for key in prompt if key not in PROMPT_KEYS]
            if unknown:
                raise ValueError(
                    f"a prompt mapping may have {', '.join(PROMPT_KEYS)}; got {unknown[0]!r:.60}"
                )
            text = prompt.get("prompt")
            if "prompt_token_ids" in prompt:
                if text is not None and not isinstance(text, str):
                    raise ValueError(f"prompt must be text or None, got {type(text).__name__}")
                return text, self._ids(prompt["prompt_token_ids"])
            if not isinstance(text, str):
                raise ValueError('a prompt mapping needs "prompt" (text) or "prompt_token_ids"')
        else:
            return None, self._ids(prompt)
        if self._tokenizer is None:
            raise ValueError("prompt is text, but this engine has no tokenizer; pass token ids")
        return text, self._check_known(self._check_length(self._tokenizer.encode(text)))

    def _ids(self, ids: Any) -> list[int]:
        if hasattr(ids, "tolist"):  # an array, of whichever library
            ids = ids.tolist()
        if not isinstance(ids, Sequence) or isinstance(ids, str | bytes):
            raise ValueError(
                f"prompt_token_ids must be a list of integers, got {type(ids).__name__}"
            )
        self._check_length(ids)  # type: ignore[arg-type]  # first, since it says no at once
        vocab = self._model.vocab_size
        checked = [x.tolist() if hasattr(x, "tolist") else x for x in ids]
        for token in checked:
            if type(token) is not int or not 0 <= token < vocab:
                shown = repr(token) if len(repr(token)) < 32 else repr(token)[:32] + "…"
                raise ValueError(
                    f"prompt_token_ids contains {shown}; ids are integers from 0 to {vocab - 1}"
                )
        return checked

    def _check_known(self, ids: list[int]) -> list[int]:
        """Refuse ids without an embedding: tokens that were added and never trained."""
        if max(ids) >= self._model.vocab_size:
            raise ValueError(
                f"the prompt has token {max(ids)}; the model has embeddings for "
                f"{self._model.vocab_size} tokens (ids from 0 to {self._model.vocab_size - 1})"
            )
        return ids

    def _check_length(self, ids: list[int]) -> list[int]:
        config = self._config
        if not ids:
            raise ValueError("the prompt is empty; it must have at least 1 token")
        if len(ids) >= config.max_model_len:
            raise ContextLengthExceeded(
                config.max_model_len,
                f"the prompt has {len(ids)} tokens; it must leave room for one more within "
                f"max_model_len={config.max_model_len}",
            )
        if len(ids) > config.max_prompt_len:
            held = config.num_gpu_blocks * config.block_size
            raise ContextLengthExceeded(
                held,
                f"the prompt has {len(ids)} tokens; the whole cache holds {held} "
                f"({config.num_gpu_blocks} blocks of {config.block_size})",
            )
        return ids

    def _grammar(self, params: SamplingParams) -> Grammar | None:
        form = params.structured_outputs
        return None if form is None else self.grammars.start(form)  # type: ignore[arg-type]

    @cached_property
    def grammars(self) -> Grammars:
        """What compiles structured outputs. Raises FormError without a tokenizer."""
        if self._tokenizer is None:
            raise FormError("", "needs a tokenizer, and this engine has none")
        return Grammars(self._tokenizer, self._model.vocab_size, self._eos_token_ids)

    def _seed(self, params: SamplingParams, number: int) -> int:
        if params.seed is not None:
            return params.seed
        return (self._config.seed + number + 1) % 2**64

    @cached_property
    def _special_tokens(self) -> dict[str, int]:
        if self._tokenizer is None:
            return {}
        names = {index: self._tokenizer.token_text(index) for index in self._tokenizer.special_ids}
        return {name: index for index, name in names.items()}

    @cached_property
    def _needs_context(self) -> bool:
        return self._tokenizer is not None and needs_context(self._tokenizer.backend)

    @cached_property
    def _eos_token_ids(self) -> frozenset[int]:
        found = set(self._model.eos_token_ids)
        if self._tokenizer is not None and self._tokenizer.eos_token_id is not None:
            found.add(self._tokenizer.eos_token_id)
        return frozenset(token for token in found if token < self._model.vocab_size)

    def _rules(self, params: SamplingParams, max_tokens: int) -> StopRules:
        if params.stop and (self._tokenizer is None or not params.detokenize):
            raise ValueError(f"stop={list(params.stop)!r} needs a tokenizer and detokenize=True")
        return StopRules.for_request(
            params,
            eos_token_ids=self._eos_token_ids,
            special_tokens=self._special_tokens,
            max_tokens=max_tokens,
        )

    def _bad_words(self, params: SamplingParams) -> list[tuple[int, ...]]:
        if not params.bad_words:
            return []
        if self._tokenizer is None:
            raise ValueError(f"bad_words={list(params.bad_words)!r} needs a tokenizer")
        encode = self._tokenizer.encode
        return bad_word_sequences(params.bad_words, lambda text: encode(text, False))


def _each(make: Callable[[Any, P], R], prompts: Sequence[Any], params: Sequence[P]) -> list[R]:
    """A request for each prompt; a ValueError names the index of the first bad one."""
    made = []
    for index, (prompt, chosen) in enumerate(zip(prompts, params, strict=True)):
        try:
            made.append(make(prompt, chosen))
        except ValueError as error:
            raise ValueError(f"prompt {index}: {error}") from error
    return made


class ContextLengthExceeded(ValueError):
    """Error of a prompt that does not fit, in the words that clients of OpenAI's API look for.

    most: tokens of prompt and answer together. what: is too long, as a clause. name: of the input.
    """

    def __init__(self, most: int, what: str, name: str = "prompt") -> None:
        super().__init__(
            f"This model's maximum context length is {most} tokens. However, {what}. "
            f"Please reduce the length of the {name}."
        )
