"""Client: requests to an OpenAI-compatible server, timed."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from paxkv.bench.serve.datasets import Ask
from paxkv.bench.serve.outcome import Outcome

LONGEST_ERROR = 300


def require_aiohttp() -> Any:
    """`aiohttp`. Raises ValueError saying how to install it."""
    try:
        import aiohttp
    except ImportError:
        raise ValueError("bench serve needs aiohttp: pip install 'paxkv[bench]'") from None
    return aiohttp


class Client:
    """One server, one model.

    url: of the endpoint. session: aiohttp's. fields: sent with every request, less than its own.
    """

    def __init__(self, session: Any, url: str, model: str, fields: dict[str, Any]) -> None:
        self._session = session
        self._url = url
        self._model = model
        self._fields = fields
        self._failure = require_aiohttp().ClientError
        self._chat = url.endswith("/chat/completions")

    def body(self, ask: Ask) -> dict[str, Any]:
        """The JSON of a request. Raises ValueError if the endpoint takes no such prompt."""
        prompt: Any = ask.prompt
        messages = isinstance(prompt, list) and isinstance(prompt[0], dict)
        if self._chat and isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        elif self._chat != messages:
            kind = "messages" if messages else "token ids"
            raise ValueError(f"endpoint {self._url} takes no {kind}; choose the other --backend")
        return {
            "model": self._model,
            "messages" if self._chat else "prompt": prompt,
            "max_tokens": ask.max_tokens,
            **self._fields,
            **ask.fields,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def send(self, ask: Ask, clock: Callable[[], float]) -> Outcome:
        """Ask, and read the answer to its end; whatever fails is in the outcome."""
        body = self.body(ask)
        outcome = Outcome(clock(), num_sequences=max(1, ask.fields.get("n") or 1))
        try:
            async with self._session.post(self._url, json=body) as response:
                if response.status != 200:
                    text = await response.text()
                    outcome.error = f"status {response.status}: {text[:LONGEST_ERROR]}"
                else:
                    await self._read(response, outcome, clock)
        except (OSError, TimeoutError, ValueError, LookupError, TypeError, self._failure) as error:
            outcome.error = f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
        if outcome.end is None:
            outcome.end = clock()
        return outcome

    async def _read(self, response: Any, outcome: Outcome, clock: Callable[[], float]) -> None:
        done = False
        texts = []
        async for data in _events(response.content):
            if data == "[DONE]":
                done = True
                break
            chunk = json.loads(data)
            if "error" in chunk:
                raise ValueError(chunk["error"].get("message", "an error within the stream"))
            if chunk.get("usage"):
                outcome.prompt_tokens = chunk["usage"]["prompt_tokens"]
                outcome.output_tokens = chunk["usage"]["completion_tokens"]
            if any(map(_has_tokens, chunk["choices"])):
                now = clock()
                outcome.first_token = now if outcome.first_token is None else outcome.first_token
                outcome.chunk_times.append(now)
                outcome.end = now
                texts += [_text(choice) for choice in chunk["choices"]]
        if not done:
            raise ValueError("the stream ended without [DONE]")
        outcome.text = "".join(texts)
        outcome.output_tokens = outcome.output_tokens or len(outcome.chunk_times)


def _has_tokens(choice: dict[str, Any]) -> bool:
    """Whether this is a piece of an answer: also a token without text, not the role of a chat."""
    if "delta" in choice:
        delta = choice["delta"]
        return bool(delta.get("content") or delta.get("tool_calls") or choice.get("finish_reason"))
    return choice.get("text") is not None


def _text(choice: dict[str, Any]) -> str:
    return choice.get("text") or choice.get("delta", {}).get("content") or ""


async def _events(lines: AsyncIterator[bytes]) -> AsyncIterator[str]:
    async for line in lines:
        if line.startswith(b"data:"):
            yield line[5:].strip().decode()


def stopwatch() -> Callable[[], float]:
    """Seconds since this call."""
    start = time.perf_counter()
    return lambda: time.perf_counter() - start
