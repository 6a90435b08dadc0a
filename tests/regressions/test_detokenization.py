"""Bug bank, over HTTP: text of tokens."""

from __future__ import annotations

import pytest

from tests.server.tiny_server import TinyServer, chat, completion, forced, joined, tokenizer

TEXTS = (
    "\U0001f9d1\u200d\U0001f680 ok",
    " 今天的天气很好",
    "Příliš žluťoučký kůň",
    "áb \U0001f1ef\U0001f1f5",
)


@pytest.mark.parametrize("text", TEXTS)
def test_dt_01_characters_split_over_tokens(server: TinyServer, text: str) -> None:
    ids = tokenizer().encode(text, add_special_tokens=False)
    assert len(ids) > len(text) / 2
    with forced(server, ids):
        events = server.events("/v1/completions", completion(max_tokens=len(ids)))
        pieces = [chunk["choices"][0]["text"] for chunk in events[:-1]]
    assert "".join(pieces) == text
    assert not any("�" in piece for piece in pieces)
    assert len(pieces) > 2


@pytest.mark.parametrize("text", TEXTS)
def test_dt_03_bytes_and_display_text(server: TinyServer, text: str) -> None:
    ids = tokenizer().encode(text, add_special_tokens=False)
    with forced(server, ids):
        body = chat(logprobs=True, top_logprobs=5, max_tokens=len(ids))
        found = server.post("/v1/chat/completions", body).json()["choices"][0]
        streamed = joined(server.events("/v1/chat/completions", body))[0]
    content = found["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == text
    assert found["message"]["content"] == streamed["text"] == text
    assert streamed["logprobs"]["content"] == content
    shown = [t for entry in content for t in (entry, *entry["top_logprobs"])]
    assert not any(mark in t["token"] for t in shown for mark in "ĠĊ▁")
    assert all(t["bytes"] or t["token"].startswith("<|") for t in shown)
