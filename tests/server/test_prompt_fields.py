"""Fields that decide where a prompt begins and ends."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from paxkv.text.chat import render_chat
from tests.server.tiny_server import TEMPLATE, TinyServer, chat, completion, joined
from tests.server.tiny_server import tokenizer as tiny_tokenizer

COMPLETIONS, CHAT, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
LONG = "the cat sat on the mat and the dog ran " * 60  # more than max_model_len
LENGTH = 512
TRIMS = "{% for m in messages %}[{{ m.role | upper }}] {{ m.content | trim }}\n{% endfor %}"


def prompt_ids(server: TinyServer, path: str, body: dict[str, Any]) -> list[int]:
    reply = server.post(path, {**body, "return_token_ids": True})
    assert reply.status == 200, reply.content
    found = reply.json()
    return found.get("prompt_token_ids") or found["choices"][0]["prompt_token_ids"]


def test_a_prompt_is_cut_to_its_last_tokens(server: TinyServer) -> None:
    ids = tiny_tokenizer().encode(LONG)
    assert len(ids) > LENGTH
    for prompt in (LONG, ids):
        for field, want in ((7, 7), (LENGTH - 1, LENGTH - 1), (-1, LENGTH - 6)):
            body = completion(prompt, truncate_prompt_tokens=field)
            assert prompt_ids(server, COMPLETIONS, body) == ids[-want:]
    assert server.post(COMPLETIONS, completion(LONG)).status == 400
    short = tiny_tokenizer().encode("the cat")
    assert (
        prompt_ids(server, COMPLETIONS, completion("the cat", truncate_prompt_tokens=400)) == short
    )
    both = server.post(COMPLETIONS, completion([LONG, "the cat"], truncate_prompt_tokens=3)).json()
    assert both["usage"]["prompt_tokens"] == 3 + min(3, len(short))


def test_what_is_cut_does_not_count(server: TinyServer) -> None:
    """The answer is that to the rest, and echo shows the rest."""
    ids = tiny_tokenizer().encode(LONG)[-5:]
    cut = server.post(COMPLETIONS, completion(LONG, truncate_prompt_tokens=5, echo=True)).json()
    alone = server.post(COMPLETIONS, completion(ids, echo=True)).json()
    assert cut["choices"] == alone["choices"]
    assert cut["usage"]["prompt_tokens"] == 5


def test_conversations_and_inputs_are_cut(server: TinyServer) -> None:
    text = server.post("/tokenize", chat("the cat")).json()["tokens"]
    assert prompt_ids(server, CHAT, chat("the cat", truncate_prompt_tokens=4)) == text[-4:]
    long = prompt_ids(server, CHAT, chat(LONG, truncate_prompt_tokens=-1))
    assert len(long) == LENGTH - 6
    assert long[-4:] == text[-4:]
    body = {"input": LONG, "truncate_prompt_tokens": 6}
    alone = server.post(EMBEDDINGS, {"input": tiny_tokenizer().encode(LONG)[-6:]}).json()
    found = server.post(EMBEDDINGS, body).json()
    assert found["usage"]["prompt_tokens"] == 6
    assert found["data"] == alone["data"]


@pytest.mark.parametrize("value", [0, -2, LENGTH, "7", 1.5, True, [3]])
def test_wrong_truncation(server: TinyServer, value: Any) -> None:
    for path, body in ((COMPLETIONS, completion()), (CHAT, chat())):
        reply = server.post(path, {**body, "truncate_prompt_tokens": value})
        assert (reply.status, reply.error["param"]) == (400, "truncate_prompt_tokens")
    reply = server.post(EMBEDDINGS, {"input": "a", "truncate_prompt_tokens": value})
    assert (reply.status, reply.error["param"]) == (400, "truncate_prompt_tokens")


@pytest.mark.parametrize("said", ["The mat is", "Once. ", "{{ 1 }} <|im_end|> x", ""])
def test_an_answer_goes_on(server: TinyServer, said: str) -> None:
    """The prompt is the one transformers makes; the answer is what follows it."""
    messages = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": said}]
    reference = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer().backend)
    want = reference.apply_chat_template(
        messages, chat_template=TEMPLATE, continue_final_message=True, tokenize=False
    )
    ids = tiny_tokenizer().encode(want, add_special_tokens=False)
    body = chat(messages=messages, continue_final_message=True, add_generation_prompt=False)
    assert prompt_ids(server, CHAT, body) == ids
    body.pop("add_generation_prompt")
    assert prompt_ids(server, CHAT, body) == ids
    assert server.post("/tokenize", body).json()["tokens"] == ids
    answer = server.post(CHAT, body).json()["choices"][0]["message"]["content"]
    assert answer == server.post(COMPLETIONS, completion(ids)).json()["choices"][0]["text"]


@pytest.mark.parametrize("content", ["The mat is", [{"type": "text", "text": "The mat is"}]])
def test_echo_in_chat_shows_what_the_answer_goes_on_from(server: TinyServer, content: Any) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}]
    body = chat(messages=messages, continue_final_message=True, n=2, seed=3, temperature=1)
    plain = server.post(CHAT, body).json()
    echoed = server.post(CHAT, {**body, "echo": True}).json()
    streamed = joined(server.events(CHAT, {**body, "echo": True}))
    for index, choice in enumerate(plain["choices"]):
        want = "The mat is" + choice["message"]["content"]
        assert echoed["choices"][index]["message"]["content"] == streamed[index]["text"] == want
    assert echoed["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]


def test_echo_in_chat_shows_nobody_elses_words(server: TinyServer) -> None:
    plain, echoed = (server.post(CHAT, chat(echo=echo)).json() for echo in (None, True))
    assert echoed["choices"] == plain["choices"]
    assert server.post(CHAT, chat(echo="yes")).status == 400


def test_a_template_that_trims_or_leaves_out() -> None:
    messages = [{"role": "user", "content": " hi "}, {"role": "assistant", "content": " So "}]
    text = render_chat(TRIMS, messages, continue_final_message=True)
    assert text == "[USER] hi\n[ASSISTANT] So "
    with pytest.raises(ValueError, match="leaves it out"):
        render_chat("{{ messages[0].content }}", messages, continue_final_message=True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"add_generation_prompt": True}, "continue_final_message"),
        ({"messages": [{"role": "assistant", "tool_calls": [], "refusal": "no"}]}, "messages"),
    ],
)
def test_what_cannot_go_on(server: TinyServer, fields: dict[str, Any], param: str) -> None:
    reply = server.post(CHAT, chat(**{"continue_final_message": True, **fields}))
    assert (reply.status, reply.error["param"]) == (400, param)


def test_a_scored_prompt_has_no_completion_tokens(server: TinyServer) -> None:
    """As OpenAI counts: one token is sampled behind the scenes, and belongs to nobody."""
    for n in (1, 2):
        body = completion("the cat", echo=True, max_tokens=0, logprobs=1, n=n)
        found = server.post(COMPLETIONS, body).json()
        prompt = len(tiny_tokenizer().encode("the cat"))
        assert found["usage"]["completion_tokens"] == 0
        assert found["usage"]["total_tokens"] == found["usage"]["prompt_tokens"] == prompt
        for choice in found["choices"]:
            assert len(choice["logprobs"]["tokens"]) == prompt
        events = server.events(COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
        assert events[-2]["usage"]["completion_tokens"] == 0
