"""A conversation with tools as the openai package sends it back, and what LLM.chat makes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paxkv import LLM
from tests.convert.test_chat import SMOLLM2
from tests.server.test_tools import CALLS, CHAT, HERMES, TOOLS
from tests.server.tiny_server import NAME, TinyModel, TinyServer, chat, forced, serving, tokenizer

openai = pytest.importorskip("openai")


def test_the_openai_package_sends_its_calls_back() -> None:
    """Kind: an assistant's message with content null was refused by templates of text."""
    with serving(TinyModel(SMOLLM2, max_num_seqs=2)) as server:
        said = HERMES.removeprefix("Let me see.\n") + "<|im_end|>"
        base = f"http://127.0.0.1:{server.port}/v1"
        asked: dict[str, Any] = {"model": NAME, "tools": TOOLS, "max_tokens": 200, "temperature": 0}
        messages: list[Any] = [{"role": "user", "content": "hi"}]
        with openai.OpenAI(base_url=base, api_key="any") as client:
            with forced(server, tokenizer().encode(said, add_special_tokens=False)):
                found = client.chat.completions.create(messages=messages, **asked)
            message = found.choices[0].message
            assert message.content is None
            assert [c.function.name for c in message.tool_calls] == [name for name, _ in CALLS]
            results = [
                {"role": "tool", "tool_call_id": call.id, "content": "noon"}
                for call in message.tool_calls
            ]
            for back in (message, message.model_dump(), message.model_dump(exclude_none=True)):
                turns = [*messages, back, *results]
                again = client.chat.completions.create(messages=turns, **{**asked, "max_tokens": 2})
                assert again.usage.completion_tokens == 2
        server.wait_idle()


def test_unknown_content_parts_over_http(server: TinyServer) -> None:
    """Kind: parts that nobody reads were dropped."""
    for part in (
        {"type": "image_url", "text": "a"},
        {"text": "a"},
        {"type": "file", "text": ""},
    ):
        reply = server.post(CHAT, chat([{"type": "text", "text": "see"}, part]))
        assert (reply.status, reply.error["param"]) == (400, "messages")


def test_llm_chat_normalises_as_http_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kind: the front door in Python and the one over HTTP saw two conversations."""
    template = (
        "{% for m in messages %}{{ m.role + m.content }}{{ ' calls' if 'tool_calls' in m }}"
        "{% for c in m.tool_calls %}{{ c.function.arguments.a }}{% endfor %},{% endfor %}"
    )
    function = {"name": "clock", "arguments": json.dumps({"a": 1})}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": function}]},
        {"role": "assistant", "content": "yo", "tool_calls": []},
    ]
    llm = LLM.__new__(LLM)
    llm._tokenizer = tokenizer(template)
    monkeypatch.setattr(llm, "generate", lambda prompts, *rest: prompts)
    (prompt,) = llm.chat(messages)
    text = tokenizer().decode(prompt["prompt_token_ids"])
    assert text == "userhi,assistant calls1,assistantyo,"
    with pytest.raises(ValueError, match="content part 'image_url'"):
        llm.chat([{"role": "user", "content": [{"type": "image_url", "text": "a"}]}])
