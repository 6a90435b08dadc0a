"""`vllm bench serve` against this server: its requests as it sends them, its answers as it reads
them (vllm/benchmarks/serve.py and lib/endpoint_request_func.py). It is no dependency."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.server.tiny_server import NAME, TinyServer

aiohttp = pytest.importorskip("aiohttp")

WORDS = "the cat sat on the mat"
COMPLETIONS, CHAT, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
# --top-p, --temperature and the like, and --extra-body, are merged into one.
EXTRA = {
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.0,
    "temperature": 0.7,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "seed": 1,
}


def completion_body(prompt: Any, length: int, **more: Any) -> dict[str, Any]:
    return {
        "model": NAME,
        "prompt": prompt,
        "repetition_penalty": 1.0,
        "max_tokens": length,
        "logprobs": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }


def chat_body(text: str, length: int, **more: Any) -> dict[str, Any]:
    return {
        "model": NAME,
        "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}],
        "max_completion_tokens": length,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }


@dataclass
class Heard:
    """What that client makes of a stream. choices: events with one, each counted as a token's.
    lost: what it could not read."""

    text: str = ""
    choices: int = 0
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    done: bool = False
    lost: str = ""


def events_in(buffer: str) -> tuple[list[str], str]:
    """Its way to cut a stream: at empty lines, and what is left counts if it is whole by itself."""
    *whole, left = buffer.split("\n\n")
    whole = [text.strip() for text in whole if text.strip()]
    if left.startswith("data: "):
        value = left[6:].strip()
        try:
            complete = value == "[DONE]" or bool(value and [json.loads(value)])
        except json.JSONDecodeError:
            complete = False
        if complete:
            return [*whole, left.strip()], ""
    return whole, left


async def hear(session: Any, url: str, body: dict[str, Any], number: int) -> Heard:
    heard, buffer = Heard(), ""
    headers = {"x-request-id": f"benchmark-serving{number}"}
    async with session.post(url, json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        assert response.headers["x-request-id"] == headers["x-request-id"]
        async for part in response.content.iter_any():
            messages, buffer = events_in(buffer + part.strip().decode())
            for message in messages:
                if message == "data: [DONE]":
                    heard.done = True
                elif not message.startswith(":"):
                    note(heard, json.loads(message.removeprefix("data: ")))
    heard.lost = buffer
    return heard


def note(heard: Heard, event: dict[str, Any]) -> None:
    """A choice, or else the usage: an event with both would count no tokens."""
    if choices := event.get("choices"):
        chosen = choices[0]
        said = chosen["delta"].get("content") if "delta" in chosen else chosen.get("text")
        heard.text += said or ""
        heard.choices += 1
    elif usage := event.get("usage"):
        heard.output_tokens = usage.get("completion_tokens")
        heard.prompt_tokens = usage.get("prompt_tokens")


def bench(server: TinyServer, path: str, bodies: list[dict[str, Any]]) -> list[Heard]:
    async def run() -> list[Heard]:
        connector = aiohttp.TCPConnector(limit=4, limit_per_host=4, keepalive_timeout=60)
        async with aiohttp.ClientSession(connector=connector) as session:
            url = f"http://127.0.0.1:{server.port}{path}"
            return await asyncio.gather(*[hear(session, url, b, n) for n, b in enumerate(bodies)])

    return asyncio.run(run())


def whole_text(server: TinyServer, path: str, body: dict[str, Any]) -> str:
    reply = server.post(path, {**body, "stream": False, "stream_options": None}).json()
    (choice,) = reply["choices"]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def test_completions(server: TinyServer) -> None:
    """--backend openai or vllm: texts, token ids as timed_trace has them, logprobs, more."""
    ids = [9, 10, 11, 12, 13]
    bodies = [
        completion_body(WORDS, 7, ignore_eos=True, temperature=0),
        completion_body(ids, 9, ignore_eos=True, temperature=0),
        completion_body(WORDS, 6, **{**EXTRA, "ignore_eos": True}),
        completion_body(WORDS, 6, ignore_eos=True, temperature=0, logprobs=3),
        completion_body("Hi", 1, ignore_eos=True, temperature=0),
    ] * 3
    found = bench(server, COMPLETIONS, bodies)
    for body, heard in zip(bodies, found, strict=True):
        assert heard.done
        assert not heard.lost
        assert heard.output_tokens == body["max_tokens"]
        assert 0 < heard.choices <= body["max_tokens"]
        assert heard.text == whole_text(server, COMPLETIONS, body)
    assert found[1].prompt_tokens == len(ids)


def test_chat(server: TinyServer) -> None:
    """--backend openai-chat: parts of text, and messages of a dataset as they are."""
    turns = [{"role": "system", "content": "Be short."}, {"role": "user", "content": WORDS}]
    bodies = [
        chat_body(WORDS, 8, ignore_eos=True, temperature=0),
        chat_body(WORDS, 5, **{**EXTRA, "ignore_eos": True}),
        chat_body(WORDS, 5, ignore_eos=True, temperature=0, messages=turns),
        chat_body("Hi", 1, ignore_eos=True, temperature=0),
    ] * 3
    for body, heard in zip(bodies, bench(server, CHAT, bodies), strict=True):
        assert heard.done
        assert not heard.lost
        assert heard.output_tokens == body["max_completion_tokens"]
        assert heard.choices > 0
        assert heard.text == whole_text(server, CHAT, body)


def test_what_it_asks_before(server: TinyServer) -> None:
    """The first model; whether the prompts' lengths are the server's; speculation's counters."""
    (card,) = server.get("/v1/models").json()["data"]
    assert (card["id"], card["root"]) == (NAME, NAME)
    asked = {"model": NAME, "prompt": WORDS, "add_special_tokens": False}
    ids = server.post("/tokenize", asked).json()["tokens"]
    cut = server.post("/detokenize", {"model": NAME, "tokens": ids[:3]}).json()["prompt"]
    assert cut
    assert WORDS.startswith(cut)
    metrics = server.get("/metrics").content.decode()
    assert "vllm:spec_decode" not in metrics
    assert "vllm:diffusion" not in metrics


def test_embeddings(server: TinyServer) -> None:
    """--backend openai-embeddings: what is too long is cut by the server."""
    for text in ([WORDS, "on"], WORDS * 200):
        body = {"model": NAME, "input": text, "truncate_prompt_tokens": -1}
        reply = server.post(EMBEDDINGS, body)
        assert reply.status == 200, reply.content
        assert 0 < reply.json()["usage"]["prompt_tokens"] <= 512
