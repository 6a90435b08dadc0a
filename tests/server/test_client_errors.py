"""Errors in the terms that clients act on: a context that is full, a deadline that has passed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.tiny_server import NAME, TinyServer, chat, completion
from tests.server.tiny_server import tokenizer as tiny_tokenizer

openai = pytest.importorskip("openai")
LENGTH = 512
BARELY = "the cat sat on the mat and the dog ran " * 60  # tokens decide
FAR = "the cat " * 100_000  # characters decide
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.mark.parametrize("text", [BARELY, FAR], ids=["barely", "far"])
@pytest.mark.parametrize(
    ("path", "param"),
    [
        (COMPLETIONS, "prompt"),
        (CHAT, "messages"),
        ("/generate", "prompt"),
        ("/v1/embeddings", "input"),
    ],
)
def test_a_full_context(server: TinyServer, path: str, param: str, text: str) -> None:
    """Kind: an error that clients answer by shortening the prompt, if they can tell it."""
    body: dict[str, Any] = {"input": text} if param == "input" else completion(text)
    if path == CHAT:
        body = chat(text)
    for sent in (body, {**body, "stream": True}) if param != "input" else (body,):
        reply = server.post(path, sent)
        assert reply.status == 400
        assert reply.error["code"] == "context_length_exceeded"
        assert reply.error["param"] == param
        begun = f"This model's maximum context length is {LENGTH} tokens"
        assert reply.error["message"].startswith(begun)
        assert reply.error["type"] == "invalid_request_error"


def test_a_full_context_among_others(server: TinyServer) -> None:
    ids = tiny_tokenizer().encode(BARELY)
    for prompt in (["the cat", BARELY], [[5, 6], ids]):
        error = server.post(COMPLETIONS, completion(prompt)).error
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert error["message"].startswith("prompt[1]: This model's maximum context length is 512 ")
    assert server.post("/tokenize", {"prompt": FAR}).error["code"] == "context_length_exceeded"
    assert server.post(COMPLETIONS, completion("")).error["code"] is None


def test_a_deadline_is_not_tried_again(server: TinyServer) -> None:
    """Kind: an error that the client multiplies: openai's package repeats every 408."""
    for stream in (False, True):
        body = completion(timeout=1e-6, max_tokens=300, stream=stream)
        reply = server.post(COMPLETIONS, body)
        assert (reply.status, reply.headers["x-should-retry"]) == (408, "false")
    assert "x-should-retry" not in server.post(COMPLETIONS, completion(temperature=-1)).headers
    asked = 0
    check = server.service.check_model

    def counted(name: str | None) -> None:
        nonlocal asked
        asked += 1
        check(name)

    server.service.check_model = counted  # type: ignore[method-assign]
    try:
        base = f"http://127.0.0.1:{server.port}/v1"
        with (
            openai.OpenAI(base_url=base, api_key="any", max_retries=3) as client,
            pytest.raises(openai.APIStatusError) as caught,
        ):
            client.completions.create(
                model=NAME, prompt="a", max_tokens=300, extra_body={"timeout": 1e-6}
            )
    finally:
        server.service.check_model = check  # type: ignore[method-assign]
    assert (caught.value.status_code, asked) == (408, 1)


def test_a_full_context_as_the_openai_package_tells_it(server: TinyServer) -> None:
    base = f"http://127.0.0.1:{server.port}/v1"
    with (
        openai.OpenAI(base_url=base, api_key="any") as client,
        pytest.raises(openai.BadRequestError) as caught,
    ):
        client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": FAR}])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
