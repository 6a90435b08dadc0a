"""LLM: a model, an engine, and text on both sides."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import convert
from convert.pull import PullError, default_cache_dir
from paxkv.engine.build import load_engine
from paxkv.engine.config import EngineConfig
from paxkv.engine.embedding import PoolingParams
from paxkv.engine.fork import refuse_forked
from paxkv.engine.input_processor import InputProcessor
from paxkv.engine.locking import EngineLock
from paxkv.engine.progress import RequestBar
from paxkv.engine.request import Request
from paxkv.engine.runner.compiler import use_persistent_cache
from paxkv.models.config import ModelConfig
from paxkv.outputs import EmbeddingRequestOutput, RequestOutput
from paxkv.sampling.sampling_params import BeamSearchParams, SamplingParams
from paxkv.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Prompt = str | Sequence[int] | Mapping[str, Any]
Messages = Sequence[Mapping[str, Any]]


class LLM:
    """Generates text from a model held in this process. Threads may share one.

    Rows of the model beyond the tokenizer's vocabulary are not loaded, so they are never sampled.
    An id within it that stands for no token (some vocabularies have gaps) can be, as in
    transformers and vLLM; its text is empty.

    Args:
        model: a known name ("smollm2-135m"), a hub id, a Hugging Face directory or a .gguf file.
        tokenizer: a directory or file to take the tokenizer from instead.
        skip_tokenizer_init: work on token ids alone, all that the configuration's vocabulary has.
        engine_args: fields of `EngineConfig`.

    Raises:
        ValueError: an option that is unknown, out of range, or contradicts the model.
        RuntimeError: this process was forked from one in which JAX was running.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        tokenizer: str | Path | None = None,
        skip_tokenizer_init: bool = False,
        **engine_args: Any,
    ) -> None:
        options = EngineConfig.from_args(engine_args)
        refuse_forked()
        use_persistent_cache(_cache_directory(options))
        checkpoint = convert.open_checkpoint(model, revision=options.revision)
        self._tokenizer = None
        if not skip_tokenizer_init:
            source = checkpoint if tokenizer is None else convert.open_checkpoint(tokenizer)
            self._tokenizer = source.tokenizer()
        self.model_config = _without_padding(checkpoint.config, self._tokenizer)
        load = partial(convert.load_params, checkpoint)
        self.engine = load_engine(self.model_config, checkpoint.dtype, load, options)
        self.input_processor = InputProcessor(self.engine, self.model_config, self._tokenizer)
        self._lock = EngineLock(self.engine)

    def close(self) -> None:
        """Release the device's memory: weights, pages and all state. Requests that run are aborted,
        and whatever needs the engine from now on is a RuntimeError."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Generating

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete every prompt; outputs come in the order of the prompts.

        Args:
            prompts: one or a list of: text, token ids (a list or an array), {"prompt": text},
                {"prompt_token_ids": ids}.
            sampling_params: one for all, or one for each.

        Raises:
            ValueError: a prompt or parameter that cannot run, before any work, by its index.
        """
        listed = _listed(prompts)
        chosen = SamplingParams() if sampling_params is None else sampling_params
        return self._run(self.input_processor.requests(listed, chosen), use_tqdm)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """The `beam_width` best completions of every prompt, best first.

        Their `cumulative_logprob` divided by their number of tokens to the power of
        `length_penalty` is what they are ranked by. Fewer come only if fewer can be told apart.

        Raises:
            ValueError: a prompt or parameter that cannot run, before any work, by its index.
        """
        if not isinstance(params, BeamSearchParams):
            raise ValueError(f"params must be BeamSearchParams, got {type(params).__name__}")
        return self.generate(prompts, params.sampling_params(), use_tqdm)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of several, through the model's chat template."""
        conversations = _conversations(messages)
        prompts = [
            {
                "prompt_token_ids": self.get_tokenizer().apply_chat_template(
                    conversation,
                    add_generation_prompt=add_generation_prompt,
                    tools=tools,
                    template=chat_template,
                )
            }
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params, use_tqdm)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool = True,
    ) -> list[EmbeddingRequestOutput]:
        """A vector for each prompt, from the hidden states after the decoder's last norm.

        Raises:
            ValueError: a prompt or parameter that cannot run, before any work, by its index.
            RuntimeError: a request that failed.
        """
        params = PoolingParams() if pooling_params is None else pooling_params
        requests = self.input_processor.embeddings(_listed(prompts), params)
        self._run(requests, use_tqdm)
        return [request.embedding_output() for request in requests]

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Complete one prompt, yielding the output so far after each step that adds to it.

        Leaving the iterator early aborts the request. Others may run beside it.

        Raises:
            ValueError: the prompt or a parameter cannot run, best_of is above n, or
                use_beam_search is True.
        """
        params = SamplingParams() if sampling_params is None else sampling_params
        (request,) = self.input_processor.requests([prompt], params)
        if request.sampling_params.use_beam_search:
            raise ValueError(
                "use_beam_search must be False in a stream: beams are known when all have ended"
            )
        if request.sampling_params.children > request.sampling_params.n:
            raise ValueError(
                f"best_of={params.best_of} must equal n={params.n} in a stream: children are "
                "ranked when all have ended"
            )
        return self._stream(request)

    def _stream(self, request: Request) -> Iterator[RequestOutput]:
        try:
            self._lock.add([request])
            shown = 0, False
            while not shown[1]:
                now, output = self._lock.call(partial(_seen, request, shown))
                if output is None:
                    self._lock.step()
                    continue
                shown = now
                yield output
        finally:
            self._lock.abort([request])

    def _run(self, requests: Sequence[Request], use_tqdm: bool) -> list[RequestOutput]:
        try:
            self._lock.add(requests)
            with RequestBar(requests, shown=use_tqdm) as shown:
                for request in requests:
                    while not request.finished:
                        shown.note(self._lock.step())
                shown.note(requests)
        except BaseException:
            self._lock.abort(requests)
            raise
        for request in requests:
            if request.error is not None:
                warnings.warn(f"request {request.request_id}: {request.error}", stacklevel=3)
        # Another thread may be in the step that ends the last of them.
        return self._lock.call(lambda: [request.output() for request in requests])

    # Looking at it

    def get_tokenizer(self) -> Any:
        """The tokenizer. Raises ValueError if the model was opened without one."""
        if self._tokenizer is None:
            raise ValueError("this LLM has no tokenizer (skip_tokenizer_init=True)")
        return self._tokenizer

    def stats(self) -> Any:
        """Engine statistics, an `EngineStats`."""
        return self._lock.call(self.engine.stats)

    def reset_prefix_cache(self) -> None:
        """Forget all cached blocks."""
        self._lock.call(self.engine.block_manager.reset_prefix_cache)


def _seen(
    request: Request, shown: tuple[int, bool]
) -> tuple[tuple[int, bool], RequestOutput | None]:
    """How many tokens there are and whether it has ended; and all of it, unless that was shown."""
    now = sum(len(s.output_token_ids) for s in request.sequences), request.finished
    return now, None if now == shown else request.output()


def _without_padding(config: ModelConfig, tokenizer: Tokenizer | None) -> ModelConfig:
    """Without the rows beyond the tokenizer's: not loaded, they cannot be sampled."""
    if tokenizer is None:
        return config
    known = min(config.vocab_size, tokenizer.vocab_size)
    ends = tuple(token for token in config.eos_token_ids if token < known)
    return replace(config, vocab_size=known, eos_token_ids=ends)


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | bytes | Mapping):
        return [prompts]
    if hasattr(prompts, "tolist"):  # an array of token ids, of whichever library
        prompts = prompts.tolist()
    try:
        listed = list(prompts)
    except TypeError:
        raise ValueError(
            "prompts must be text, token ids, a mapping or a list of these, got "
            f"{type(prompts).__name__}"
        ) from None
    if listed and all(isinstance(p, Integral) and not isinstance(p, bool) for p in listed):
        return [{"prompt_token_ids": listed}]
    return listed  # type: ignore[return-value]


def _conversations(messages: Messages | Sequence[Messages]) -> Sequence[Messages]:
    """One conversation or several, as several."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise ValueError(f"messages must be a list of messages, got {type(messages).__name__}")
    if not messages:
        raise ValueError("messages is empty; at least one message is needed")
    return [messages] if isinstance(messages[0], Mapping) else messages  # type: ignore[list-item,return-value]


def _cache_directory(options: EngineConfig) -> Path | None:
    if options.compilation_cache_dir is not None:
        return Path(options.compilation_cache_dir) if options.compilation_cache_dir else None
    try:
        return default_cache_dir() / "programs"
    except PullError:
        logger.warning("without a home directory programs are not kept: give compilation_cache_dir")
        return None
