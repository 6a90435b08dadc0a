"""Clients that must work unchanged: the openai package, and curl."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from typing import Any, Literal

import pydantic
import pytest

from tests.server.tiny_server import NAME, TinyServer

openai = pytest.importorskip("openai")

HI = [{"role": "user", "content": "the cat"}]
FIXED: dict[str, Any] = {"model": NAME, "temperature": 0, "max_tokens": 5}
GREEDY: dict[str, Any] = {**FIXED, "extra_body": {"ignore_eos": True}}


def address(server: TinyServer) -> dict[str, Any]:
    return {"base_url": f"http://127.0.0.1:{server.port}/v1", "api_key": "any", "max_retries": 0}


def test_openai_sync(server: TinyServer) -> None:
    with openai.OpenAI(**address(server)) as client:
        assert [model.id for model in client.models.list()] == [NAME]
        assert client.models.retrieve(NAME).id == NAME
        found = client.chat.completions.create(
            messages=HI, logprobs=True, top_logprobs=2, n=2, **GREEDY
        )
        first = found.choices[0]
        assert [c.message.content for c in found.choices] == [first.message.content] * 2
        assert found.usage.completion_tokens == 10
        assert found.usage.prompt_tokens_details.cached_tokens % 4 == 0
        assert len(first.logprobs.content) == 5
        assert len(first.logprobs.content[0].top_logprobs) == 2
        done = client.completions.create(prompt=["the cat", "sat"], logprobs=1, **GREEDY)
        assert [c.index for c in done.choices] == [0, 1]
        assert len(done.choices[1].logprobs.tokens) == 5
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(messages=HI, **{**GREEDY, "temperature": 7e9})
        assert caught.value.param == "temperature"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(messages=HI, **{**GREEDY, "model": "gpt-5"})


def test_openai_streams(server: TinyServer) -> None:
    with openai.OpenAI(**address(server)) as client:
        whole = client.chat.completions.create(messages=HI, **GREEDY)
        chunks = list(
            client.chat.completions.create(
                messages=HI, stream=True, stream_options={"include_usage": True}, **GREEDY
            )
        )
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == whole.choices[0].message.content
        assert chunks[-1].usage.completion_tokens == 5
        plain = client.completions.create(prompt="the cat", stream=True, **GREEDY)
        assert [c.choices[0].finish_reason for c in plain][-1] == "length"
        with client.chat.completions.stream(messages=HI, stop=text[2], **GREEDY) as events:
            final = events.get_final_completion()
        assert final.choices[0].message.content == text[:2]


class Pet(pydantic.BaseModel):
    name: Literal["Rex", "Tom"]
    tame: bool


def test_openai_structured_output(server: TinyServer) -> None:
    asked: dict[str, Any] = {"model": NAME, "messages": HI, "max_tokens": 300, "seed": 4}
    with openai.OpenAI(**address(server)) as client:
        found = client.chat.completions.parse(response_format=Pet, **asked)
        pet = found.choices[0].message.parsed
        assert isinstance(pet, Pet)
        with client.chat.completions.stream(response_format=Pet, **asked) as events:
            assert events.get_final_completion().choices[0].message.parsed == pet


def test_openai_async(server: TinyServer) -> None:
    async def run() -> list[str]:
        async with openai.AsyncOpenAI(**address(server)) as client:

            async def one() -> str:
                stream = await client.chat.completions.create(messages=HI, stream=True, **GREEDY)
                return "".join([c.choices[0].delta.content or "" async for c in stream])

            texts = await asyncio.gather(*[one() for _ in range(12)])
            stream = await client.chat.completions.create(
                messages=HI, stream=True, **{**GREEDY, "max_tokens": 400}
            )
            async for _ in stream:
                break
            await stream.close()
            return texts

    texts = asyncio.run(run())
    assert len(set(texts)) == 1
    assert texts[0]
    server.wait_until(lambda: not server.service.loop.calls, seconds=2)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(server: TinyServer) -> None:
    def curl(*arguments: str) -> str:
        command = ["curl", "-sS", "--max-time", "20", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    base = f"http://127.0.0.1:{server.port}"
    body = json.dumps({"prompt": "the cat", "max_tokens": 3, "ignore_eos": True})
    header = "Content-Type: application/json"
    found = json.loads(curl(f"{base}/v1/completions", "-H", header, "-d", body))
    assert found["usage"]["completion_tokens"] == 3
    stream = json.dumps({**json.loads(body), "stream": True})
    lines = curl("-N", f"{base}/v1/completions", "-H", header, "-d", stream).split("\n\n")
    assert [line[:6] for line in lines[:-1]] == ["data: "] * (len(lines) - 1)
    assert lines[-2] == "data: [DONE]"
    assert (
        "application/json"
        in json.loads(curl(f"{base}/v1/completions", "-d", body))["error"]["message"]
    )
    assert json.loads(curl(f"{base}/v1/models"))["data"][0]["id"] == NAME
