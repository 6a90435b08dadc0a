"""Every field of OpenAI's and vLLM's requests: what docs/fields.md says of it is what happens."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from paxkv.server.request_fields import IGNORED, REFUSED
from paxkv.server.routes.chat import ChatBody
from paxkv.server.routes.completions import CompletionBody
from paxkv.server.schemas import GenerationBody, StreamOptions
from tests.server.tiny_server import NAME, TinyServer, chat, completion

TABLE = Path(__file__).parents[2] / "docs" / "fields.md"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BODIES: dict[str, tuple[type[GenerationBody], dict[str, Any]]] = {
    COMPLETIONS: (CompletionBody, completion(max_tokens=2)),
    CHAT: (ChatBody, chat(max_tokens=2)),
}
# vLLM's CompletionRequest and ChatCompletionRequest, of 2026, without what OpenAI has too.
VLLM_BOTH = """use_beam_search top_k min_p repetition_penalty watermarking length_penalty
    stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
    spaces_between_special_tokens truncate_prompt_tokens truncation_side prompt_logprobs
    logprob_token_ids allowed_token_ids bad_words add_special_tokens response_format
    structured_outputs priority request_id session_id return_tokens_as_token_ids return_token_ids
    routed_experts_prompt_start return_token_offsets return_mm_kwargs cache_salt kv_transfer_params
    ec_transfer_params vllm_xargs repetition_detection thinking_token_budget
    stream_interval""".split()
VLLM_COMPLETIONS = ["prompt_embeds", "response_format"]
VLLM_CHAT = """include_reasoning echo add_generation_prompt continue_final_message documents
    chat_template chat_template_kwargs media_io_kwargs mm_processor_kwargs
    return_prompt_text""".split()
# What a client may mean by it, where a list of a list would be harmless or out of the question.
ASKED = {
    "suffix": "and so on",
    "add_special_tokens": False,
    "truncation_side": "right",
    "include_reasoning": False,
    "thinking_token_budget": 0,
    "function_call": {"name": "clock"},
    "tool_choice": "required",
    "modalities": ["text", "audio"],
    "verbosity": "low",
    "return_prompt_text": True,
    "watermarking": True,
}


def openai_fields(path: str) -> set[str]:
    pytest.importorskip("openai")
    from openai.types import completion_create_params as completions
    from openai.types.chat import completion_create_params as chats

    module = chats if path == CHAT else completions
    kinds = ("Base", "NonStreaming", "Streaming")
    classes = [getattr(module, f"CompletionCreateParams{kind}") for kind in kinds]
    return {name for each in classes for name in each.__annotations__}


def table() -> dict[str, dict[str, str]]:
    """What is said of each field, by route."""
    rows: dict[str, dict[str, str]] = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        found = re.match(r"\| `(\w+)` \| (\S+) \| (\S+) \| (.*) \|$", line)
        if found:
            assert found[1] not in rows
            rows[found[1]] = {COMPLETIONS: found[2], CHAT: found[3], "note": found[4]}
    return rows


ROWS = table()


def said(path: str, what: str) -> list[str]:
    return [name for name, row in ROWS.items() if row[path] == what]


@pytest.mark.parametrize("path", BODIES)
def test_the_table_is_whole(path: str) -> None:
    """Kind: a field of the schemas that nobody thought of, or a row that nothing stands behind."""
    body, _ = BODIES[path]
    vllm = [*VLLM_BOTH, *(VLLM_CHAT if path == CHAT else VLLM_COMPLETIONS)]
    known = {*openai_fields(path), *vllm, *body.model_fields}
    assert known <= set(ROWS)
    bodies = {*CompletionBody.model_fields, *ChatBody.model_fields}
    assert set(ROWS) == {*bodies, *REFUSED, *IGNORED} - {"include_obfuscation"}
    for name, row in ROWS.items():
        obeyed, refused = name in body.model_fields, name in REFUSED
        want = "obeyed" if obeyed else "refused" if refused else "ignored"
        assert row[path] == want, name
        assert want != "ignored" or name in IGNORED or name not in known, name
        if want == "refused":
            assert REFUSED[name].reason in row["note"], name
        if want == "ignored" and name in IGNORED:
            assert IGNORED[name] in row["note"], name


@pytest.mark.parametrize("path", BODIES)
def test_obeyed_fields_are_read(server: TinyServer, path: str) -> None:
    """Kind: a field of a body that nothing reads: whoever reads one refuses nonsense in it."""
    for name in said(path, "obeyed"):
        reply = server.post(path, {**BODIES[path][1], name: [[]]})
        assert (reply.status, reply.error["param"]) == (400, name), reply.content


@pytest.mark.parametrize("path", BODIES)
def test_refused_fields_are_refused_by_name(server: TinyServer, path: str) -> None:
    """Kind: a field that would change the answer and was dropped."""
    for name in said(path, "refused"):
        reply = server.post(path, {**BODIES[path][1], name: ASKED.get(name, [[]])})
        assert (reply.status, reply.error["param"]) == (400, name)
        assert reply.error["code"] == "unsupported"
        assert f"{name} is not supported" in reply.error["message"]
    for name in said(path, "refused"):
        for value in (None, *REFUSED[name].harmless):
            assert server.post(path, {**BODIES[path][1], name: value}).status == 200, name


@pytest.mark.parametrize("path", BODIES)
def test_ignored_fields_change_nothing(
    server: TinyServer, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Kind: a field that cannot change the answer and was refused."""
    body = BODIES[path][1]
    plain = server.post(path, body).json()["choices"]
    caplog.set_level(logging.INFO, "paxkv.server.schemas")
    for name in said(path, "ignored"):
        caplog.clear()
        value = {"type": "content", "content": "the cat"} if name == "prediction" else True
        assert server.post(path, {**body, name: value}).json()["choices"] == plain
        assert f"{name} (" in caplog.text
    caplog.clear()
    options = {"include_usage": True, "include_obfuscation": False}
    server.events(path, {**body, "stream_options": options})
    assert "include_obfuscation (chunks are not padded)" in caplog.text
    assert set(StreamOptions.model_fields) == {"include_usage", "continuous_usage_stats"}


@pytest.mark.parametrize("path", [*BODIES, "/generate"])
@pytest.mark.parametrize("last", [False, True])
def test_usage_in_every_chunk(server: TinyServer, path: str, last: bool) -> None:
    """Kind: a field that benchmarks send was refused."""
    body = {**(BODIES[path][1] if path in BODIES else completion()), "max_tokens": 5}
    body["stream_options"] = {"continuous_usage_stats": True, "include_usage": last}
    *events, done = server.events(path, body)
    assert done == "[DONE]"
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] == 5
    assert len({event["usage"]["prompt_tokens"] for event in events}) == 1
    if path != "/generate":
        assert (events[-1]["choices"] == []) == last


def test_what_templates_are_told(server: TinyServer) -> None:
    """Kind: a field that changes the prompt and was dropped."""
    tokenizer = server.model.get_tokenizer()
    before = tokenizer.chat_template
    tokenizer.set_chat_template("{{ reasoning_effort }} {{ enable_thinking }}")
    try:
        for effort, kwargs, want in (
            ("low", {}, "low True"),
            ("none", {}, "none False"),
            ("high", {"enable_thinking": False}, "high False"),
        ):
            body = chat(reasoning_effort=effort, chat_template_kwargs=kwargs, return_token_ids=True)
            ids = server.post(CHAT, body).json()["prompt_token_ids"]
            assert tokenizer.decode(ids) == want
    finally:
        tokenizer.set_chat_template(before)


def test_the_openai_package_may_send_them_all(server: TinyServer) -> None:
    openai = pytest.importorskip("openai")
    base = f"http://127.0.0.1:{server.port}/v1"
    with openai.OpenAI(base_url=base, api_key="any") as client:
        found = client.chat.completions.create(
            model=NAME,
            messages=[{"role": "user", "content": "hi"}],
            max_completion_tokens=3,
            store=True,
            metadata={"a": "b"},
            prediction={"type": "content", "content": "x"},
            parallel_tool_calls=True,
            service_tier="auto",
            user="me",
            safety_identifier="me",
            prompt_cache_key="k",
            reasoning_effort="low",
        )
        assert found.usage.completion_tokens <= 3
        done = client.completions.create(model=NAME, prompt="a", suffix="", max_tokens=2)
        assert done.usage.completion_tokens <= 2
        chunks = client.completions.create(
            model=NAME,
            prompt="a",
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        )
        assert all(chunk.usage is not None for chunk in chunks)
