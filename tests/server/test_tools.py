"""Tools: calls in two formats, whole and in streams, and choices that are kept to."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from paxkv.server.settings import ServerSettings
from paxkv.server.tools.chat_text import ChatText
from paxkv.server.tools.definitions import Tools
from paxkv.server.tools.tool_calls import ForcedCalls, HermesCalls, LlamaCalls, format_of_template
from tests.server.tiny_server import (
    NAME,
    TEMPLATE,
    TinyServer,
    chat,
    forced,
    lent_model,
    serving,
    tokenizer,
)
from tests.text.form_walk import FormWalk

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "boolean"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]
HERMES = (
    'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": true}}\n'
    '</tool_call>\n<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
)
CALLS = [("weather", {"city": "Rome", "days": True}), ("clock", {})]
READERS = [
    (HermesCalls, HERMES, "Let me see.", CALLS),
    (HermesCalls, "1 < 2 <tool", "1 < 2 <tool", []),
    (HermesCalls, "<tool_call>{'a'}</tool_call> x", "<tool_call>{'a'}</tool_call> x", []),
    (HermesCalls, '<tool_call>{"name": "clock"}</tool_call>\nDone', "Done", CALLS[1:]),
    (HermesCalls, '<tool_call>{"name": "clock"}', None, CALLS[1:]),
    (HermesCalls, '<tool_call>{"name": ""}</tool_call>', '<tool_call>{"name": ""}</tool_call>', []),
    (HermesCalls, '<tool_call>{"name": "clock", "arguments": "now"}</tool_call>',
     '<tool_call>{"name": "clock", "arguments": "now"}</tool_call>', []),
    (HermesCalls, '<tool_call>{"name": "clock", "arguments": "{\\"a\\": 1}"}</tool_call>', None,
     [("clock", {"a": 1})]),
    (HermesCalls, '<tool_call>{"name": "clo', '<tool_call>{"name": "clo', []),
    (LlamaCalls, '{"name": "clock", "parameters": {}}', None, CALLS[1:]),
    (LlamaCalls, ' <|python_tag|>{"name": "weather", "parameters": {"city": "Rome", "days": true}}'
     ' ; {"name": "clock", "parameters": {}}', None, CALLS),
    (LlamaCalls, "It is noon {really}", "It is noon {really}", []),
    (LlamaCalls, '{"answer": 42}', '{"answer": 42}', []),
    (LlamaCalls, '{"name": "", "parameters": {}}', '{"name": "", "parameters": {}}', []),
    (LlamaCalls, '{"name": "clock", ', '{"name": "clock",', []),
    (ForcedCalls, '[{"name": "clock", "parameters": {"a": "}]"}} , {"name": "clock", '
     '"parameters": {}}]', None, [("clock", {"a": "}]"}), ("clock", {})]),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "text", "content", "calls"), READERS)
def test_readers(reader: Any, text: str, content: str | None, calls: list[Any]) -> None:
    for size in (1, 2, 5, len(text)):
        parts = [text[start : start + size] for start in range(0, len(text), size)]
        answer = ChatText(reader())
        deltas = [d for part in parts for d in answer.deltas(part, ended=False)]
        deltas += answer.deltas("", ended=True)
        pieces = [call for delta in deltas for call in delta.get("tool_calls", ())]
        found = [call for call in pieces if "id" in call]
        assert [call["index"] for call in found] == list(range(len(calls)))
        assert len({call["id"] for call in found}) == len(calls)
        functions = [dict(call["function"]) for call in found]
        for more in (call for call in pieces if "id" not in call):
            functions[more["index"]]["arguments"] += more["function"]["arguments"]
        assert [(f["name"], json.loads(f["arguments"])) for f in functions] == calls
        said = "".join(delta.get("content", "") for delta in deltas).strip()
        assert said == (content or "").strip()
    message = ChatText(reader()).message(text)
    assert (message["content"] or "").strip() == (content or "").strip()
    assert len(message.get("tool_calls", ())) == len(calls)


def of_type(kind: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "a", "parameters": {"type": kind}}}


def test_a_template_tells_the_format() -> None:
    assert format_of_template("… <tool_call> …") == "hermes"
    assert format_of_template('{"name": name, "parameters": dictionary}') == "llama3_json"
    assert format_of_template(None) == "hermes"


def test_calls_over_http(server: TinyServer) -> None:
    ids = tokenizer().encode(HERMES + "<|im_end|>", add_special_tokens=False)
    body = chat(tools=TOOLS, max_tokens=200, ignore_eos=False)
    with forced(server, ids):
        choice = server.post(CHAT, body).json()["choices"][0]
        events = server.events(CHAT, body)
        one = server.post(CHAT, {**body, "parallel_tool_calls": False}).json()["choices"][0]
        none = server.post(CHAT, {**body, "tool_choice": "none"}).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    functions = [call["function"] for call in choice["message"]["tool_calls"]]
    assert [(f["name"], json.loads(f["arguments"])) for f in functions] == CALLS
    deltas = [new["delta"] for event in events[:-1] for new in event["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [(call["index"], call["function"]["name"]) for call in calls] == [
        (0, "weather"),
        (1, "clock"),
    ]
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert len(one["message"]["tool_calls"]) == 1
    assert (none["message"]["content"], none["finish_reason"]) == (HERMES, "stop")


def test_the_format_can_be_chosen() -> None:
    llama = '{"name": "clock", "parameters": {}}'
    for parser, text in (("llama3_json", llama), ("hermes", HERMES)):
        with serving(settings=ServerSettings(tool_call_parser=parser)) as server:
            for said in (llama, HERMES):
                ids = tokenizer().encode(said + "<|im_end|>", add_special_tokens=False)
                with forced(server, ids):
                    body = chat(tools=TOOLS, max_tokens=200, ignore_eos=False)
                    message = server.post(CHAT, body).json()["choices"][0]["message"]
                assert ("tool_calls" in message) == (said == text)


def test_half_a_surrogate_pair_in_a_call(server: TinyServer) -> None:
    said = '<tool_call>{"name": "clock", "arguments": {"k": "\\ud800"}}</tool_call><|im_end|>'
    with forced(server, tokenizer().encode(said, add_special_tokens=False)):
        body = chat(tools=TOOLS, max_tokens=200, ignore_eos=False)
        (call,) = server.post(CHAT, body).json()["choices"][0]["message"]["tool_calls"]
        events = server.events(CHAT, {**body, "stream": True})
    assert json.loads(call["function"]["arguments"]) == {"k": "\ud800"}
    (again,) = [c for e in events[:-1] for c in e["choices"][0]["delta"].get("tool_calls", ())]
    assert again["function"] == call["function"]
    assert events[-1] == "[DONE]"


def test_the_template_gets_the_tools(server: TinyServer) -> None:
    def prompt(**fields: Any) -> str:
        found = server.post(CHAT, chat(return_token_ids=True, max_tokens=1, **fields)).json()
        return tokenizer().decode(found["prompt_token_ids"])

    assert "weather clock" in prompt(tools=TOOLS)
    assert "weather" not in prompt(tools=TOOLS, tool_choice="none")
    turn = {"id": "c", "type": "function", "function": {"name": "clock", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [turn]},
        {"role": "tool", "tool_call_id": "c", "content": "noon"},
    ]
    assert "noon" in prompt(messages=messages, tools=TOOLS)
    function: dict[str, Any] = turn["function"]  # type: ignore[assignment]
    function["arguments"] = "{"
    assert server.post(CHAT, chat(messages=messages)).status == 400
    function["arguments"] = {}
    empty = prompt(messages=messages)
    for value in ("", None, "{}"):
        function["arguments"] = value
        assert prompt(messages=messages) == empty
    del function["arguments"]
    assert prompt(messages=messages) == empty


def test_no_calls_are_no_list_of_calls() -> None:
    template = "{% for m in messages %}{{ m.role }}{{ ' calls' if 'tool_calls' in m }},{% endfor %}"
    with serving(settings=ServerSettings(chat_template=template)) as server:
        said = {"role": "assistant", "content": "yo", "tool_calls": []}
        body = {"messages": [said, {"role": "user", "content": "hi"}]}
        ids = server.post("/tokenize", body).json()["tokens"]
    assert tokenizer().decode(ids) == "assistant,user,"
    assert lent_model().get_tokenizer().chat_template == TEMPLATE, "a server's is its own"


def test_tokenize_counts_what_a_chat_would(server: TinyServer) -> None:
    asked = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
    usage = server.post(CHAT, chat(**asked)).json()["usage"]
    assert server.post("/tokenize", asked).json()["count"] == usage["prompt_tokens"]
    reply = server.post("/tokenize", {**asked, "chat_template": "x"})
    assert (reply.status, reply.json()["error"]["param"]) == (400, "chat_template")


def test_choices_are_kept_to(server: TinyServer) -> None:
    free = {"ignore_eos": False, "max_tokens": 200, "temperature": 1, "tools": [WEATHER]}
    named = {"type": "function", "function": {"name": "weather"}}
    (closing,) = tokenizer().encode("]")
    for choice, reason, fields in (
        (named, "stop", {}),
        ("required", "tool_calls", {"logit_bias": {str(closing): 50}}),
    ):
        for seed in range(3):
            body = chat(**{**free, "tool_choice": choice, "seed": seed, **fields})
            found = server.post(CHAT, body).json()["choices"][0]
            assert found["finish_reason"] == reason
            calls = found["message"]["tool_calls"]
            assert found["message"]["content"] is None
            events = server.events(CHAT, body)
            deltas = [
                call["function"]
                for event in events[:-1]
                for new in event["choices"]
                for call in new["delta"].get("tool_calls", ())
            ]
            assert {delta["name"] for delta in deltas if "name" in delta} == {"weather"}
            text = "".join(delta["arguments"] for delta in deltas)
            assert text == "".join(call["function"]["arguments"] for call in calls)
            arguments = json.loads(calls[0]["function"]["arguments"])
            assert arguments["city"] in ("Rome", "Oslo")
            assert set(arguments) == {"city", "days"}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "echo"}}])
def test_a_call_that_is_cut_off_is_none(server: TinyServer, choice: Any) -> None:
    """Kind: half a call was given as content, or as a call."""
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    tool = {"type": "function", "function": {"name": "echo", "parameters": schema}}
    said = '{"text": "aaaaaaaaaaaaaaaaaaaaaaaaaa'
    if choice == "required":
        said = '[{"name": "echo", "parameters": ' + said
    ids = tokenizer().encode(said, add_special_tokens=False)
    for most in (2, len(ids)):
        body = chat(tools=[tool], tool_choice=choice, max_tokens=most, return_token_ids=True)
        with forced(server, ids):
            found = server.post(CHAT, body).json()["choices"][0]
            events = server.events(CHAT, body)
        assert found["token_ids"] == ids[:most]
        assert found["finish_reason"] == "length"
        assert not found["message"]["content"]
        assert not found["message"].get("tool_calls")
        deltas = [new["delta"] for event in events[:-1] for new in event["choices"]]
        assert not "".join(delta.get("content") or "" for delta in deltas)
        assert events[-2]["choices"][0]["finish_reason"] == "length"
    pieces = [call["function"] for delta in deltas for call in delta.get("tool_calls", ())]
    assert pieces[0]["name"] == "echo"
    assert len(pieces) > 5
    assert "".join(piece["arguments"] for piece in pieces) == said[said.rindex("{") :]


def tool(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


REFERRING = [
    tool("tree", {"type": "object", "required": ["next"],
                  "properties": {"next": {"anyOf": [{"$ref": "#"}, {"const": 0}]}}}),
    tool("one", {"properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["a"],
                 "$defs": {"A": {"const": "one"}}}),
    tool("two", {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
                 "properties": {"a": {"$ref": "#/definitions/A"}}, "required": ["a"],
                 "definitions": {"A": {"const": "two"}}}),
]  # fmt: skip


def test_references_mean_their_own_tool_s_schema(server: TinyServer) -> None:
    """A tool's "#" was the list of all calls, and its $defs were not found."""
    walk = FormWalk(tokenizer(), {2}, 300)
    tools = Tools.read(REFERRING, "required")
    assert tools is not None
    form = tools.form()
    assert form is not None

    def takes(*calls: str) -> bool:
        whole = ",".join(f'{{"name":"{n}","parameters":{p}}}' for n, p in map(str.split, calls))
        return walk.takes(f"[{whole}]", json=form.json, disable_additional_properties=True)

    assert takes('one {"a":"one"}', 'two {"a":"two"}', 'tree {"next":{"next":0}}')
    for call in ('one {"a":"two"}', 'two {"a":"one"}', 'tree {"next":[]}', 'tree {"a":"one"}'):
        assert not takes(call), call
    assert not takes('one {"a":"one","b":1}')
    (closing,) = tokenizer().encode("]")
    body = chat(tools=REFERRING, tool_choice="required", logit_bias={str(closing): 50})
    choice = server.post(CHAT, {**body, "ignore_eos": False, "max_tokens": 200}).json()["choices"][
        0
    ]
    for call in choice["message"]["tool_calls"]:
        assert set(json.loads(call["function"]["arguments"])) <= {"a", "next"}


def test_a_tool_without_parameters_takes_none(server: TinyServer) -> None:
    """It was called with whatever the model wrote until max_tokens."""
    quote = tokenizer().encode('"')[0]
    for named in ({"type": "function", "function": {"name": "clock"}}, "required"):
        body = chat(tools=[CLOCK], tool_choice=named, logit_bias={str(quote): 20})
        body |= {"ignore_eos": False, "max_tokens": 60, "parallel_tool_calls": False}
        choice = server.post(CHAT, body).json()["choices"][0]
        call = choice["message"]["tool_calls"][0]
        assert json.loads(call["function"]["arguments"]) == {}


def test_a_schema_of_a_tool_is_refused_under_its_field(server: TinyServer) -> None:
    wrong = tool("f", {"type": "object", "properties": {"a": {"uniqueItems": True}}})
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        reply = server.post(CHAT, chat(tools=[wrong], tool_choice=choice))
        assert (reply.status, reply.error["param"]) == (400, "tools")
        assert "uniqueItems" in reply.error["message"]


def test_nested_models_of_pydantic_are_tools(server: TinyServer) -> None:
    openai = pytest.importorskip("openai")

    class Place(BaseModel):
        city: Literal["Rome", "Oslo"]

    class Trip(BaseModel):
        start: Place
        ends: list[Place] = Field(min_length=1, max_length=1)

    body = chat(tools=[openai.pydantic_function_tool(Trip)], tool_choice="required", seed=3)
    body |= {"ignore_eos": False, "max_tokens": 250, "temperature": 1}
    (closing,) = tokenizer().encode("]")
    choice = server.post(CHAT, {**body, "logit_bias": {str(closing): 50}}).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    for call in choice["message"]["tool_calls"]:
        Trip.model_validate_json(call["function"]["arguments"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [1]}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "search", "function": {"name": "a"}}]}, "tools"),
        ({"tools": [CLOCK, CLOCK]}, "tools"),
        ({"tools": [of_type("string")]}, "tools"),
        ({"tools": [of_type(["object", "null"])], "tool_choice": "required"}, "tools"),
        ({"tools": [CLOCK] * 200}, "tools"),
        ({"tools": TOOLS, "tool_choice": "some"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "nope"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "guided_regex": "a"}, "tool_choice"),
    ],
)
def test_wrong_tools(server: TinyServer, fields: dict[str, Any], param: str) -> None:
    reply = server.post(CHAT, chat(**fields))
    assert (reply.status, reply.error["param"]) == (400, param)


def test_the_openai_package_reads_them(server: TinyServer) -> None:
    openai = pytest.importorskip("openai")
    base = f"http://127.0.0.1:{server.port}/v1"
    named = {"type": "function", "function": {"name": "weather"}}
    asked: dict[str, Any] = {
        "model": NAME,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [WEATHER],
        "tool_choice": named,
        "max_tokens": 250,
        "seed": 1,
    }
    (closing,) = tokenizer().encode("]")
    required = {"tool_choice": "required", "logit_bias": {str(closing): 50}}
    with openai.OpenAI(base_url=base, api_key="any") as client:
        for fields in ({}, required):
            create = {**asked, **fields}
            calls = client.chat.completions.create(**create).choices[0].message.tool_calls
            assert {call.function.name for call in calls} == {"weather"}
            with client.chat.completions.stream(**create) as events:
                done = [e for e in events if e.type == "tool_calls.function.arguments.done"]
                again = events.get_final_completion().choices[0].message.tool_calls
            given = [json.loads(call.function.arguments) for call in calls]
            assert [json.loads(call.function.arguments) for call in again] == given
            assert [json.loads(event.arguments) for event in done] == given
        ids = tokenizer().encode(HERMES + "<|im_end|>", add_special_tokens=False)
        auto = {**asked, "tool_choice": "auto", "tools": TOOLS}
        with forced(server, ids), client.chat.completions.stream(**auto) as events:
            message = events.get_final_completion().choices[0].message
    assert message.content == "Let me see."
    assert [
        (c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls
    ] == CALLS
