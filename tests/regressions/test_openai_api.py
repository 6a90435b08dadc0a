"""Bug bank, over HTTP: the OpenAI API, and the HTTP half of sampling, stop and cache cases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.tiny_server import MODEL, TinyServer, chat, completion, joined

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
VOCAB = MODEL.vocab_size


def choice(server: TinyServer, body: dict[str, Any], path: str = COMPLETIONS) -> Any:
    reply = server.post(path, body)
    assert reply.status == 200, reply.content
    return reply.json()["choices"][0]


@pytest.mark.parametrize(
    ("options", "num_usage"),
    [(None, 0), ({}, 0), ({"include_usage": False}, 0), ({"include_usage": True}, 1)],
)
@pytest.mark.parametrize(("path", "body"), [(CHAT, chat()), (COMPLETIONS, completion())])
def test_api_01_usage_and_chunk_shape(
    server: TinyServer, path: str, body: dict[str, Any], options: Any, num_usage: int
) -> None:
    events = server.events(path, {**body, "stream_options": options})
    assert events[-1] == "[DONE]"
    chunks = events[:-1]
    assert sum(bool(chunk.get("usage")) for chunk in chunks) == num_usage
    assert all("finish_reason" in new for chunk in chunks for new in chunk["choices"])
    assert len({(c["id"], c["model"], c["created"], c["object"]) for c in chunks}) == 1
    if num_usage:
        whole = server.post(path, {**body, "enable_prefix_caching": False}).json()["usage"]
        assert chunks[-1]["choices"] == []
        found = chunks[-1]["usage"]
        assert {**found, "prompt_tokens_details": None} == {**whole, "prompt_tokens_details": None}
        assert found["completion_tokens"] == 6
    if path == CHAT:
        roles = [new["delta"].get("role") for c in chunks for new in c["choices"]]
        assert roles[0] == "assistant"
        assert not any(roles[1:])


def test_api_01_stream_options_need_a_stream(server: TinyServer) -> None:
    reply = server.post(CHAT, chat(stream_options={"include_usage": True}))
    assert reply.status == 400
    assert reply.error["param"] == "stream_options"


def test_api_02_logprobs_of_chat(server: TinyServer) -> None:
    found = server.post(CHAT, chat(logprobs=True, max_tokens=4)).json()
    content = found["choices"][0]["logprobs"]["content"]
    assert len(content) == found["usage"]["completion_tokens"] == 4
    assert all(entry["top_logprobs"] == [] for entry in content)
    content = choice(server, chat(logprobs=True, top_logprobs=3), CHAT)["logprobs"]["content"]
    for entry in content:
        values = [other["logprob"] for other in entry["top_logprobs"]]
        assert len(values) == 3
        assert values == sorted(values, reverse=True)
        assert entry["logprob"] == values[0]  # greedy
    for wrong in ({"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 21}):
        reply = server.post(CHAT, chat(**wrong))
        assert (reply.status, reply.error["param"]) == (400, "top_logprobs")


def test_api_02_logprobs_of_completions(server: TinyServer) -> None:
    found = choice(server, completion(logprobs=0, max_tokens=4))["logprobs"]
    assert {len(values) for values in found.values()} == {4}
    assert all(len(top) == 1 for top in found["top_logprobs"])
    assert choice(server, completion())["logprobs"] is None


def test_api_03_echo_stream_and_logprobs(server: TinyServer) -> None:
    body = completion("One two three", echo=True, logprobs=2, n=2, best_of=2, seed=3, temperature=1)
    whole = server.post(COMPLETIONS, body).json()["choices"]
    streamed = joined(server.events(COMPLETIONS, body))
    for index in (0, 1):
        text, lists = streamed[index]["text"], streamed[index]["logprobs"]
        assert text == whole[index]["text"]
        assert lists == whole[index]["logprobs"]
        assert text.count("One two three") == 1
        assert lists["text_offset"][0] == 0
        for token, offset in zip(lists["tokens"], lists["text_offset"]):
            if "�" not in token:
                assert text[offset:].startswith(token)
    assert whole[0]["text"] != whole[1]["text"]


MISTAKES: list[Any] = [
    b"{",
    [],
    None,
    b"",
    b"\xff\xfe",
    {"model": 1},
    {"messages": []},
    {"messages": None},
    {"messages": "hi"},
    {"messages": [{}]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": 5, "content": "x"}]},
    {"messages": [None]},
    chat([{"type": "image_url", "image_url": {"url": "http://x"}}]),
    chat(max_tokens="five"),
    chat(max_tokens=-1),
    chat(n=0),
    chat(n=10**40),
    chat(temperature=-1),
    chat(temperature="x"),
    chat(top_p=2),
    chat(stop=5),
    chat(stop=["a"] * 100),
    chat(seed=2**70),
    chat(stream="yes"),
    chat(timeout=-1),
    chat(response_format={"type": "json_schema", "schema": {}}),
    chat("\ud800"),
    chat("x" * 100_000),
    chat(chat_template_kwargs={"template": "{{ 7 * 7 }}"}),
    chat(chat_template="{{ 7 * 7 }}"),
]


@pytest.mark.parametrize("streaming", [False, True])
def test_api_04_client_mistakes(server: TinyServer, streaming: bool) -> None:
    for mistake in MISTAKES:
        body = mistake
        if isinstance(mistake, dict) and streaming:
            body = {"stream": True, **mistake}
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        reply = server.post(CHAT, body, headers={"Content-Type": "application/json"})
        assert reply.status == 400, (mistake, reply.content)
        assert reply.headers["content-type"] == "application/json"
        assert len(reply.error["message"]) <= 500
        assert reply.error["param"] is not None or not isinstance(mistake, dict)
    reply = server.post(CHAT, chat(model="nope"))
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    assert server.post(CHAT, chat()).status == 200


def test_api_04_a_huge_value_is_not_told_back(server: TinyServer) -> None:
    for body in (chat(model="m" * 9000), chat(stop="s" * 9000), chat(n=10**4000)):
        reply = server.post(CHAT, body)
        assert reply.status in (400, 404)
        assert len(reply.content) < 800


@pytest.mark.parametrize("depth", [100, 300, 500, 700, 900, 5000])
@pytest.mark.parametrize("place", ["messages", "chat_template_kwargs", "metadata", "guided_json"])
def test_api_04_deep_nesting(server: TinyServer, place: str, depth: int) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    content = json.dumps(chat())[:-1]
    if place == "messages":
        content = content.replace('"role"', f'"more": {deep}, "role"') + "}"
    else:
        content += f', "{place}": {deep}}}'
    headers = {"Content-Type": "application/json"}
    reply = server.post(CHAT, content.encode(), headers=headers)
    assert reply.status in (200, 400)
    assert reply.status == 200 or reply.error


def test_api_05_unknown_and_new_fields(server: TinyServer) -> None:
    named = [{"role": "user", "content": "hi", "name": "ann"}]
    harmless = chat(user="u1", metadata={"a": "b"}, store=False, foo=1, messages=named)
    assert server.post(CHAT, harmless).status == 200
    for path, make in ((CHAT, chat), (COMPLETIONS, completion)):
        for fields in ({"max_tokens": None}, {"max_tokens": 50}):
            body = make(max_completion_tokens=3, **fields)
            assert server.post(path, body).json()["usage"]["completion_tokens"] == 3
    found = joined(server.events(CHAT, chat(max_tokens=None)))
    assert found[0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, completion(suffix=" end"), "suffix"),
        (COMPLETIONS, completion(n=3, best_of=2), "best_of"),
        (COMPLETIONS, completion(max_tokens=0), "max_tokens"),
        (COMPLETIONS, completion(stream=True, best_of=2), "best_of"),
        (COMPLETIONS, completion(stream=True, use_beam_search=True, n=2), "use_beam_search"),
        (CHAT, chat(functions=[{"name": "f"}]), "functions"),
        (CHAT, chat(response_format={"type": "structural_tag"}), "response_format"),
        (CHAT, chat(guided_regex="a+", guided_choice=["a"]), "guided_choice"),
        (CHAT, chat(structured_outputs={"regex": "(a"}), "structured_outputs"),
    ],
)
def test_api_05_what_is_not_supported_is_refused(
    server: TinyServer, path: str, body: dict[str, Any], param: str
) -> None:
    reply = server.post(path, body)
    assert (reply.status, reply.error["param"]) == (400, param)


@pytest.mark.parametrize("streaming", [False, True])
def test_api_06_disconnects_cancel(server: TinyServer, streaming: bool) -> None:
    """Waiting, in their prompt, and decoding: there are more of them than fit at once."""
    body = chat(stream=streaming, max_tokens=None)
    connections = [server.open("POST", CHAT, body) for _ in range(40)]
    server.wait_until(lambda: server.on_engine(lambda e: e.stats().running) >= 4)
    for connection in connections:
        connection.close()
    server.wait_until(lambda: not server.service.loop.calls, seconds=2)
    server.wait_idle()
    assert server.post(CHAT, chat()).status == 200


def test_bm_01_all_children_of_a_stream_end(server: TinyServer) -> None:
    for _ in range(20):
        connection = server.open("POST", COMPLETIONS, completion(n=4, max_tokens=400, stream=True))
        assert connection.getresponse().read(20)
        connection.close()
        server.wait_until(lambda: not server.service.loop.calls, seconds=2)
    server.wait_idle()


def test_pc_02_a_salt_is_a_cache_of_its_own(server: TinyServer) -> None:
    text = list(range(40, 80))

    def cached(**fields: Any) -> int:
        usage = server.post(COMPLETIONS, completion(text, **fields)).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert [cached(cache_salt="a"), cached(cache_salt="a")] == [0, 36]
    assert [cached(cache_salt="b"), cached()] == [0, 0]
    assert [cached(enable_prefix_caching=False), cached()] == [0, 36]


@pytest.mark.parametrize("bad", [-1, VOCAB, 2**31, 2**63])
def test_sa_06_ids_outside_the_vocabulary(server: TinyServer, bad: int) -> None:
    for field, value in (
        ("logit_bias", {str(bad): 5}),
        ("prompt", [5, bad]),
        ("stop_token_ids", [bad]),
        ("allowed_token_ids", [bad]),
    ):
        reply = server.post(COMPLETIONS, completion(**{field: value}))
        assert reply.status == 400
        assert field in reply.error["message"]


def test_sa_06_ids_at_the_ends_work(server: TinyServer) -> None:
    assert server.post(COMPLETIONS, completion(logit_bias={"abc": 1})).status == 400
    for token in (5, VOCAB - 1):
        body = completion(logit_bias={str(token): 1e6}, max_tokens=1, return_token_ids=True)
        assert choice(server, body)["token_ids"] == [token]


def test_sa_07_only_the_prompt(server: TinyServer) -> None:
    body = completion("the cat sat", echo=True, logprobs=1, max_tokens=0)
    found = server.post(COMPLETIONS, body).json()
    assert found["usage"]["completion_tokens"] == 0
    assert found["choices"][0]["text"] == "the cat sat"
    lists = found["choices"][0]["logprobs"]
    assert len(lists["tokens"]) == found["usage"]["prompt_tokens"]
    assert lists["token_logprobs"][0] is None
    assert "".join(lists["tokens"]) == "the cat sat"
    more = choice(server, {**body, "max_tokens": 3})["logprobs"]
    assert more["token_logprobs"][: len(lists["tokens"])] == lists["token_logprobs"]
    scored = choice(server, completion("the cat sat", prompt_logprobs=1, max_tokens=1))
    assert scored["prompt_logprobs"][0] is None
    values = [max(e["logprob"] for e in entry.values()) for entry in scored["prompt_logprobs"][1:]]
    best = [max(top.values()) for top in lists["top_logprobs"][1:]]
    assert values == pytest.approx(best, abs=1e-4)


def test_sa_08_logprobs_are_json(server: TinyServer) -> None:
    body = completion(echo=True, logprobs=3, temperature=1, top_k=1, allowed_token_ids=[9, 11])
    assert choice(server, body)["logprobs"]["tokens"]


@pytest.mark.parametrize("prompt", ["", [""], [[]], [], [["a"]], [1, "a"], {"a": 1}, [[1], ""]])
def test_sa_09_empty_prompts(server: TinyServer, prompt: Any) -> None:
    reply = server.post(COMPLETIONS, completion(prompt))
    assert (reply.status, reply.error["param"]) == (400, "prompt")


def test_sa_09_batches_keep_their_order(server: TinyServer) -> None:
    prompts = [list(range(4, 4 + n)) for n in (60, 1, 30, 2, 55, 3, 47)]
    alone = [choice(server, completion(prompt, n=1))["text"] for prompt in prompts]
    found = server.post(COMPLETIONS, completion(prompts, n=2)).json()["choices"]
    assert [c["index"] for c in found] == list(range(14))
    assert [c["text"] for c in found] == [text for text in alone for _ in range(2)]
    streamed = joined(server.events(COMPLETIONS, completion(prompts, n=2)))
    assert [streamed[index]["text"] for index in range(14)] == [c["text"] for c in found]


def test_sa_09_a_prompt_that_does_not_fit(server: TinyServer) -> None:
    reply = server.post(COMPLETIONS, completion([[5], [5] * 512]))
    assert reply.status == 400
    assert "prompt[1]" in reply.error["message"]
    assert "512" in reply.error["message"]
    last = server.post(COMPLETIONS, completion([5] * 511, max_tokens=9)).json()
    assert last["usage"]["completion_tokens"] == 1
    assert last["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("included", [False, True])
def test_st_01_stop_strings_do_not_leak(server: TinyServer, included: bool) -> None:
    body = completion(max_tokens=40, seed=5, temperature=1)
    full = choice(server, body)["text"]
    tried = 0
    for start in range(3, 24, 3):
        for width in (1, 2, 5):
            stop = full[start : start + width]
            if "�" in stop:
                continue
            tried += 1
            stopping = {**body, "stop": [stop], "include_stop_str_in_output": included}
            whole = choice(server, stopping)
            assert whole["text"] == full[: full.index(stop)] + (stop if included else "")
            assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", stop)
            streamed = joined(server.events(COMPLETIONS, stopping))[0]
            assert (streamed["text"], streamed["stop_reason"]) == (whole["text"], stop)
    assert tried > 3


def test_beams_come_best_first(server: TinyServer) -> None:
    body = completion(use_beam_search=True, n=3, ignore_eos=False)
    found = server.post(COMPLETIONS, body).json()
    assert [c["index"] for c in found["choices"]] == [0, 1, 2]
    assert len({c["text"] for c in found["choices"]}) > 1
