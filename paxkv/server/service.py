"""Service: the model and engine loop that all routes share."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Protocol, TypeVar

from paxkv.engine.engine import Engine
from paxkv.engine.input_processor import ContextLengthExceeded, InputProcessor
from paxkv.engine.request import Request
from paxkv.sampling.sampling_params import SamplingParams
from paxkv.sampling.structured_outputs import FormError, StructuredOutputsParams
from paxkv.server import prompts
from paxkv.server.engine_loop import EngineLoop
from paxkv.server.errors import ApiError, BadRequest, NotFound
from paxkv.server.grammar.forms import refused_form
from paxkv.server.grammar.queue import GrammarQueue, NotCompiled
from paxkv.server.limits import RequestLimits
from paxkv.server.pending_request import PendingRequest
from paxkv.server.prompts import Truncation
from paxkv.server.responses.store import ResponseStore
from paxkv.server.schemas import GenerationBody
from paxkv.server.settings import ServerSettings
from paxkv.text.tokenizer import Tokenizer
from paxkv.validation import shown

T = TypeVar("T")

WORKERS = 2


class Model(Protocol):
    """Interface of a served model; `paxkv.LLM` is one."""

    engine: Engine
    input_processor: InputProcessor

    def get_tokenizer(self) -> Tokenizer: ...


class Service:
    """The model, the loop that runs it, and threads for work that would block the event loop.

    names: of the model, the first being what answers say. refused: called with each error that was
    a request's answer.
    """

    def __init__(
        self,
        model: Model,
        loop: EngineLoop,
        settings: ServerSettings,
        limits: RequestLimits,
        names: tuple[str, ...],
    ) -> None:
        self.model = model
        self.loop = loop
        self.settings = settings
        self.limits = limits
        self.names = names
        self.responses = ResponseStore(limits.max_stored_bytes)
        self.refused: list[Callable[[ApiError], None]] = []
        self.created = int(time.time())
        self.max_model_len = model.engine.config.max_model_len
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="worker")
        try:
            self.tokenizer: Tokenizer | None = model.get_tokenizer()
        except ValueError:
            self.tokenizer = None
        self.longest_text = self._longest_text()

    def _longest_text(self) -> int:
        """Characters that max_model_len tokens can stand for at most."""
        if self.tokenizer is None:
            return 0
        vocabulary = self.tokenizer.backend.get_vocab(with_added_tokens=True)
        return self.max_model_len * max(map(len, vocabulary))

    def check_text(self, text: str, name: str = "prompt") -> None:
        """Raise ContextLengthExceeded for a text that cannot fit, before it is tokenized.

        name: of the field.
        """
        if len(text) > self.longest_text:
            raise ContextLengthExceeded(
                self.max_model_len,
                f"{name} has {len(text)} characters; more than {self.longest_text} do not fit",
                name,
            )

    def need_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise BadRequest("this model is served without a tokenizer; send token ids")
        return self.tokenizer

    def check_model(self, name: str | None) -> None:
        """Raise NotFound if another model is requested; no name means this one."""
        if name is not None and name not in self.names:
            raise NotFound(
                f"the model {shown(name)} does not exist; this server has {', '.join(self.names)}",
                param="model",
                code="model_not_found",
            )

    async def work(self, function: Callable[[], T]) -> T:
        """Run `function` in a worker thread; return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, function)

    @cached_property
    def grammar_queue(self) -> GrammarQueue:
        return GrammarQueue(
            self.model.input_processor.grammars,
            self.loop.check,
            seconds=self.limits.max_grammar_seconds,
            most=self.limits.max_waiting_grammars,
            max_wait=self.settings.max_queue_wait,
        )

    def make_requests(
        self,
        body: GenerationBody,
        prompt: list[str | list[int]],
        params: SamplingParams,
        request_id: str,
        name: str = "prompt",
    ) -> list[Request]:
        """Make requests for a body's prompts; blocking. Raises NotCompiled if a grammar is not.

        name: of the field that the prompts come from.
        """
        if body.stream and params.use_beam_search:
            raise BadRequest(
                "use_beam_search must be false with stream=true: beams are known when all have "
                "ended",
                param="use_beam_search",
            )
        if body.stream and params.children > params.n:
            raise BadRequest(
                "best_of must equal n with stream=true: answers are ranked when all have ended",
                param="best_of",
            )

        def make(form: dict[str, Any], name: str) -> Request:
            return self.model.input_processor.request(
                form, params, request_id=name, cache_salt=body.cache_salt
            )

        self._need_grammar(params.structured_outputs)  # type: ignore[arg-type]
        truncation = self.truncation(body.truncate_prompt_tokens, params.max_tokens)
        cut = None if truncation is None else self.cutter(truncation)
        return prompts.make_requests(make, prompt, request_id, self.check_text, name, cut)

    def _need_grammar(self, form: StructuredOutputsParams | None) -> None:
        try:
            if form is not None and not self.model.input_processor.grammars.has(form):
                raise NotCompiled(form)
        except FormError as error:
            raise refused_form(error, getattr(form, "sent_as", None)) from None

    def truncation(self, value: Any, max_tokens: int | None = None) -> Truncation | None:
        """Read truncate_prompt_tokens. Raises BadRequest for a wrong value."""
        limits = self.model.engine.config
        return Truncation.read(value, limits, max_tokens, self.longest_text)

    def cutter(self, truncation: Truncation) -> Callable[[str | list[int]], list[int]]:
        """Cuts texts and token ids."""

        def cut(prompt: str | list[int]) -> list[int]:
            if isinstance(prompt, str):
                return truncation.text(self.need_tokenizer(), prompt)
            return truncation.ids(prompt)

        return cut

    def submit(self, body: GenerationBody, requests: list[Request]) -> PendingRequest:
        """Queue requests. Raises ApiError if no work is accepted now."""
        deadline = self.deadline(body.timeout)
        return self.loop.submit(requests, streaming=bool(body.stream), deadline=deadline)

    def deadline(self, timeout: float | None) -> float:
        """Seconds that a request may take."""
        return min(timeout or self.limits.max_request_seconds, self.limits.max_request_seconds)

    async def drain(self) -> None:
        """Refuse new work and let running requests end; waiting grammars count as new."""
        self.loop.draining = True
        if "grammar_queue" in self.__dict__:
            self.grammar_queue.refuse()
        await self.loop.drain(self.settings.shutdown_grace)

    def close(self) -> None:
        self._workers.shutdown(wait=False, cancel_futures=True)
        if "grammar_queue" in self.__dict__:
            self.grammar_queue.close()


def new_id(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}"


def usage(requests: list[Request], completion_tokens: int) -> dict[str, Any]:
    """OpenAI's usage object: prompt and generated tokens."""
    prompt = sum(request.num_prompt for request in requests)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(r.num_cached_tokens for r in requests)},
    }
