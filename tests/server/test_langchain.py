"""LangChain's ChatOpenAI, unchanged, against this server."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.server.tiny_server import NAME, TinyServer, chat, forced, tokenizer

langchain_openai = pytest.importorskip("langchain_openai")
messages = pytest.importorskip("langchain_core.messages")

HERMES = 'One moment.\n<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'


class Weather(BaseModel):
    """How is it there?"""

    city: Literal["Rome", "Oslo"]
    windy: bool


def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


def client(server: TinyServer, **options: Any) -> Any:
    given = {"temperature": 0, "max_tokens": 6, "max_retries": 0, **options}
    base = f"http://127.0.0.1:{server.port}/v1"
    extra = {"ignore_eos": True, **given.pop("extra_body", {})}
    return langchain_openai.ChatOpenAI(
        model=NAME, base_url=base, api_key="any", extra_body=extra, **given
    )


def text_of(server: TinyServer, **fields: Any) -> str:
    return server.post("/v1/chat/completions", chat(**fields)).json()["choices"][0]["message"][
        "content"
    ]


def test_answers_and_streams(server: TinyServer) -> None:
    model = client(server, stream_usage=True)
    want = text_of(server)
    answer = model.invoke("the cat")
    assert answer.content == want
    assert answer.usage_metadata["output_tokens"] == 6
    assert answer.response_metadata["finish_reason"] == "length"
    chunks = list(model.stream("the cat"))
    assert "".join(chunk.content for chunk in chunks) == want
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    assert whole.usage_metadata == answer.usage_metadata
    turns = [messages.SystemMessage("Be short."), messages.HumanMessage("the cat")]
    roles = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "the cat"}]
    assert model.invoke(turns).content == text_of(server, messages=roles)
    scored = client(server, logprobs=True, top_logprobs=2).invoke("the cat")
    assert len(scored.response_metadata["logprobs"]["content"]) == 6


def test_many_at_once(server: TinyServer) -> None:
    async def run() -> list[Any]:
        return await client(server).abatch(["the cat"] * 5 + ["the dog"] * 5)

    found = [answer.content for answer in asyncio.run(run())]
    assert found == [text_of(server)] * 5 + [text_of(server, content="the dog")] * 5


def test_tools(server: TinyServer) -> None:
    """A call, whole and streamed, and the turn that answers it."""
    ids = tokenizer().encode(HERMES + "<|im_end|>", add_special_tokens=False)
    model = client(server, max_tokens=100, extra_body={"ignore_eos": False})
    bound = model.bind_tools([weather])
    with forced(server, ids):
        answer = bound.invoke("How is Oslo?")
        chunks = list(bound.stream("How is Oslo?"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    for found in (answer, whole):
        (call,) = found.tool_calls
        assert (call["name"], call["args"]) == ("weather", {"city": "Oslo"})
        assert found.content.strip() == "One moment."
    result = messages.ToolMessage(weather("Oslo"), tool_call_id=answer.tool_calls[0]["id"])
    turns = [messages.HumanMessage("How is Oslo?"), answer, result]
    assert client(server).bind_tools([weather]).invoke(turns).content
    sampled = client(
        server, max_tokens=200, temperature=1, seed=3, extra_body={"ignore_eos": False}
    )
    strict = sampled.bind_tools([Weather], tool_choice="Weather", strict=True)
    (call,) = strict.invoke("How is Rome?").tool_calls
    assert call["name"] == "Weather"
    assert call["args"]["city"] in ("Rome", "Oslo")


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(server: TinyServer, method: str) -> None:
    """A random model keeps to the schema, so the parser gets what it asked for."""
    model = client(server, max_tokens=200, temperature=1, seed=3, extra_body={"ignore_eos": False})
    form = model.with_structured_output(Weather, method=method, strict=True)
    found = form.invoke("How is Rome?")
    assert isinstance(found, Weather)


def test_json_mode_and_errors(server: TinyServer) -> None:
    openai = pytest.importorskip("openai")
    with pytest.raises(openai.BadRequestError):
        client(server, temperature=-1).invoke("the cat")
    (closing,) = tokenizer().encode("}")
    model = client(
        server,
        max_tokens=300,
        extra_body={"ignore_eos": False, "logit_bias": {str(closing): 50}},
    )
    found = model.with_structured_output(Weather, method="json_mode", include_raw=True).invoke("x")
    assert found["raw"].content.startswith("{")
