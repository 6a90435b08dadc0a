"""A stand-in for `paxkv.llm.LLM` that answers at once and remembers what it was asked."""

from __future__ import annotations

import signal
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from convert.pull import PullError
from paxkv.outputs import CompletionOutput, RequestOutput


class FakeTokenizer:
    """One token a word; a conversation is its messages, one after the other."""

    def apply_chat_template(self, messages: list[dict[str, str]]) -> list[int]:
        self.last_messages = [dict(message) for message in messages]
        return list(range(sum(len(message["content"].split()) for message in messages)))


class FakeLLM:
    """Answers every prompt with `answer`, a word a token.

    Attributes:
        longest_prompt: a longer one is refused, in tokens.
        interrupt_after: Ctrl-C is pressed after so many tokens.
        closed: streams that were closed before their end.
    """

    instances: list[FakeLLM] = []  # noqa: RUF012
    answer = "paging is a table"
    longest_prompt = 40
    interrupt_after: int | None = None

    def __init__(self, model: str, **engine_arguments: Any) -> None:
        if model == "broken":
            raise TypeError("a fault of the engine")
        if model == "offline":
            raise PullError("cannot reach the index; connect, or give a path")
        if model == "missing":
            raise ValueError("model 'missing' is neither a known name nor a path")
        self.model = model
        self.engine_arguments = engine_arguments
        self.requests: list[tuple[Any, Any]] = []
        self.closed = 0
        self.tokenizer = FakeTokenizer()
        FakeLLM.instances.append(self)

    def get_tokenizer(self) -> FakeTokenizer:
        return self.tokenizer

    def stream(self, prompt: Any, params: Any) -> Iterator[RequestOutput]:
        self.requests.append((prompt, params))
        if isinstance(prompt, dict) and len(prompt["prompt_token_ids"]) > self.longest_prompt:
            raise ValueError("prompt of 41 tokens leaves no room in max_model_len 41")
        return self._stream()

    def _stream(self) -> Iterator[RequestOutput]:
        words = self.answer.split(" ")
        try:
            for count in range(1, len(words) + 1):
                if self.interrupt_after == count - 1:
                    signal.raise_signal(signal.SIGINT)
                yield _output(" ".join(words[:count]), count, count == len(words))
        except GeneratorExit:
            self.closed += 1
            raise

    def generate(self, prompts: Any, params: Any, use_tqdm: bool = True) -> list[RequestOutput]:
        self.requests.append((prompts, params))
        outputs = [_output(f"answer {index}", 2, True) for index, _ in enumerate(prompts)]
        for output in outputs:
            first = output.outputs[0]
            output.outputs = [
                CompletionOutput(index=i, text=f"{first.text}.{i}", token_ids=first.token_ids)
                for i in range(params.n)
            ]
        return outputs


def _output(text: str, num_tokens: int, finished: bool) -> RequestOutput:
    completion = CompletionOutput(index=0, text=text, token_ids=list(range(num_tokens)))
    return RequestOutput("0", None, [], [completion], finished)


@pytest.fixture
def llm_class(monkeypatch: pytest.MonkeyPatch) -> type[FakeLLM]:
    """Puts a fresh `FakeLLM` in the place of the real one."""
    fresh = type("FreshFakeLLM", (FakeLLM,), {})
    FakeLLM.instances.clear()
    module = types.ModuleType("paxkv.llm")
    module.LLM = fresh  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "paxkv.llm", module)
    return fresh
