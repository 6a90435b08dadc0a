"""/v1/responses: events, items, the store, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paxkv.server.limits import RequestLimits
from paxkv.server.responses.items import messages_of, read_items
from paxkv.server.responses.output import ResponseOutput
from paxkv.server.settings import ServerSettings
from tests.server.test_tools import HERMES, TOOLS
from tests.server.tiny_server import Client, TinyServer, chat, forced, serving, tokenizer

ROUTE = "/v1/responses"
CHAT = "/v1/chat/completions"
FUNCTIONS = [{"type": "function", **tool["function"]} for tool in TOOLS]
LOGPROBS = "message.output_text.logprobs"


def asked(given: Any = "the cat", **fields: Any) -> dict[str, Any]:
    defaults = {"temperature": 0, "max_output_tokens": 6, "ignore_eos": True}
    return {"input": given, **defaults, **fields}


def answered(server: Client, given: Any = "the cat", **fields: Any) -> dict[str, Any]:
    reply = server.post(ROUTE, asked(given, **fields))
    assert reply.status == 200, reply.content
    return checked(reply.json())


def checked(response: dict[str, Any]) -> dict[str, Any]:
    """The response, valid by the types of the openai package."""
    types = pytest.importorskip("openai.types.responses")
    types.Response.model_validate(response)
    return response


def events_of(server: Client, given: Any = "the cat", **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream, valid by the types of the openai package."""
    types = pytest.importorskip("openai.types.responses")
    pydantic = pytest.importorskip("pydantic")
    valid = pydantic.TypeAdapter(types.ResponseStreamEvent)
    reply = server.post(ROUTE, asked(given, stream=True, **fields))
    assert reply.status == 200, reply.content
    assert reply.headers["content-type"].startswith("text/event-stream")
    *blocks, rest = reply.content.decode().split("\n\n")
    assert rest == ""
    events = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        assert valid.validate_python(event).type == event["type"]
        events.append(event)
    return events


def rebuilt(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output items as a client puts them together from deltas alone; each event must be of
    the one item that is open."""
    items: list[dict[str, Any]] = []
    is_open = False
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind in ("created", "in_progress", "completed", "incomplete", "failed"):
            continue
        assert event["output_index"] == len(items) - (kind != "output_item.added")
        assert is_open == (kind != "output_item.added")
        if kind == "output_item.added":
            is_open = True
            assert event["item"]["status"] == "in_progress"
            items.append(event["item"])
            continue
        item = items[-1]
        assert event.get("item_id", item["id"]) == item["id"]
        if kind == "content_part.added":
            assert item["content"] == []
            item["content"].append(event["part"])
        elif kind == "output_text.delta":
            item["content"][event["content_index"]]["text"] += event["delta"]
            item["content"][event["content_index"]]["logprobs"] += event["logprobs"]
        elif kind == "function_call_arguments.delta":
            item["arguments"] += event["delta"]
        elif kind == "output_text.done":
            part = item["content"][0]
            assert (event["text"], event["logprobs"]) == (part["text"], part["logprobs"])
        elif kind == "content_part.done":
            assert event["part"] == item["content"][0]
        elif kind == "function_call_arguments.done":
            assert (event["arguments"], event["name"]) == (item["arguments"], item["name"])
        elif kind == "output_item.done":
            is_open = False
            item["status"] = event["item"]["status"]
            assert event["item"] == item
        else:
            raise AssertionError(kind)
    assert not is_open
    return items


def said(response: dict[str, Any]) -> list[Any]:
    """What a response says, without ids."""
    told = []
    for item in response["output"]:
        if item["type"] == "message":
            (part,) = item["content"]
            told.append((item["status"], part["text"], part["logprobs"]))
        else:
            told.append((item["status"], item["name"], item["arguments"]))
    return told


def words(response: dict[str, Any]) -> str:
    (item,) = response["output"]
    return item["content"][0]["text"]


def saying(text: str) -> list[int]:
    return tokenizer().encode(text + "<|im_end|>", add_special_tokens=False)


def prompt_of(server: Client, **fields: Any) -> int:
    return answered(server, max_output_tokens=1, **fields)["usage"]["input_tokens"]


def test_it_says_what_a_chat_says(server: TinyServer) -> None:
    whole = server.post(CHAT, chat()).json()
    response = answered(server)
    assert words(response) == whole["choices"][0]["message"]["content"]
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] == 6
    assert response["usage"]["input_tokens"] == whole["usage"]["prompt_tokens"]
    with forced(server, saying("Hello you")):
        ended = answered(server, ignore_eos=False, max_output_tokens=50)
    assert (ended["status"], words(ended)) == ("completed", "Hello you")
    assert ended["completed_at"] >= ended["created_at"]
    parts = [{"type": "input_text", "text": "the cat"}]
    item = {"role": "user", "content": parts}
    for same in ([item], [{**item, "type": "message"}], [{**item, "content": "the cat"}]):
        assert words(answered(server, same)) == words(response)


def test_a_stream_of_text(server: TinyServer) -> None:
    for fields in ({}, {"include": [LOGPROBS], "top_logprobs": 2}):
        events = events_of(server, **fields)
        kinds = [event["type"].removeprefix("response.") for event in events]
        start = ["created", "in_progress", "output_item.added", "content_part.added"]
        end = ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
        assert kinds[:4] + kinds[-4:] == start + end
        assert set(kinds[4:-4]) == {"output_text.delta"}
        last = events[-1]["response"]
        assert rebuilt(events) == last["output"]
        assert said(last) == said(answered(server, **fields))
        assert len(last["output"][0]["content"][0]["logprobs"]) == (6 if fields else 0)
        assert events[0]["response"]["id"] == last["id"]
        assert events[0]["response"]["output"] == []
    chosen = server.post(CHAT, chat(logprobs=True, top_logprobs=2)).json()["choices"][0]
    assert last["output"][0]["content"][0]["logprobs"] == chosen["logprobs"]["content"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HERMES, ["message", "function_call", "function_call"]),
        ('\n\n<tool_call>{"name": "clock"}</tool_call>\n', ["function_call"]),
        ('<tool_call>{"name": "clock"}</tool_call> So.', ["function_call", "message"]),
        ("\n\n", ["message"]),
        ("", ["message"]),
    ],
)
def test_a_stream_of_calls(server: TinyServer, text: str, expected: list[str]) -> None:
    fields: dict[str, Any] = {"tools": FUNCTIONS, "max_output_tokens": 200, "ignore_eos": False}
    with forced(server, saying(text)):
        events = events_of(server, include=[LOGPROBS], **fields)
        whole = answered(server, include=[LOGPROBS], **fields)
        plain = server.post(CHAT, chat(tools=TOOLS, max_tokens=200, ignore_eos=False)).json()
    last = events[-1]["response"]
    assert last["status"] == "completed"
    assert [item["type"] for item in last["output"]] == expected
    assert rebuilt(events) == last["output"]
    assert said(last) == said(whole)
    message = plain["choices"][0]["message"]
    calls = [item for item in last["output"] if item["type"] == "function_call"]
    assert [(c["name"], c["arguments"]) for c in calls] == [
        (c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", ())
    ]
    assert len({item["id"] for item in last["output"]}) == len(expected)
    texts = [i["content"][0]["text"] for i in last["output"] if i["type"] == "message"]
    assert "".join(texts).strip() == (message["content"] or "").strip()


def test_tool_choices(server: TinyServer) -> None:
    free: dict[str, Any] = {"ignore_eos": False, "max_output_tokens": 200, "temperature": 1}
    weather = {"type": "function", "name": "weather"}
    for choice in (weather, {"type": "allowed_tools", "mode": "required", "tools": [weather]}):
        (closing,) = tokenizer().encode("]")
        bias = {} if choice is weather else {"logit_bias": {str(closing): 50}}
        response = answered(server, tools=FUNCTIONS, tool_choice=choice, seed=1, **free, **bias)
        calls = response["output"]
        assert {call["name"] for call in calls} == {"weather"}
        assert json.loads(calls[0]["arguments"])["city"] in ("Rome", "Oslo")
        assert response["tool_choice"] == choice
    with forced(server, saying(HERMES)):
        none = answered(server, tools=FUNCTIONS, tool_choice="none", **free)
        one = answered(server, tools=FUNCTIONS, parallel_tool_calls=False, **free)
    assert words(none) == HERMES
    assert [item["type"] for item in one["output"]] == ["message", "function_call"]
    with forced(server, saying('{"city": "Rome"')[:-1]):
        cut = answered(
            server, tools=FUNCTIONS, tool_choice=weather, **{**free, "max_output_tokens": 9}
        )
    assert cut["status"] == "incomplete"
    assert all(item["status"] == "incomplete" for item in cut["output"])


def test_the_form_of_the_text(server: TinyServer) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "name": "A", "schema": schema, "strict": True}
    fields: dict[str, Any] = {"ignore_eos": False, "max_output_tokens": 100, "temperature": 1}
    response = answered(server, text={"format": form}, seed=3, **fields)
    assert json.loads(words(response))["a"] in (1, 2)
    assert response["text"]["format"] == form
    ids = saying('{"b": 3}')
    with forced(server, ids):
        free = answered(server, text={"format": {"type": "json_object"}}, **fields)
    assert json.loads(words(free)) == {"b": 3}
    assert words(answered(server, text={"format": {"type": "text"}})) == words(answered(server))


def test_instructions_and_items_become_a_chat(server: TinyServer) -> None:
    with_system = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "hi"}]
    found = server.post(CHAT, chat(messages=with_system)).json()
    response = answered(server, "hi", instructions="Be short.")
    assert words(response) == found["choices"][0]["message"]["content"]
    call = {"type": "function_call", "call_id": "c", "name": "clock", "arguments": "{}"}
    items = read_items(
        [
            {"role": "user", "content": "hi"},
            {"type": "message", "role": "assistant", "content": [
                {"type": "output_text", "text": "Let me see.", "annotations": []}]},
            call,
            {**call, "call_id": "d"},
            {"type": "function_call_output", "call_id": "c", "output": "noon"},
            {"type": "function_call_output", "call_id": "d", "output": [
                {"type": "input_text", "text": "one"}]},
            call,
        ],
        lambda _: None,
    )  # fmt: skip
    user, assistant, first, second, again = messages_of(items)
    assert user == {"role": "user", "content": "hi"}
    assert assistant["content"] == [{"type": "text", "text": "Let me see."}]
    assert [c["id"] for c in assistant["tool_calls"]] == ["c", "d"]
    assert first == {"role": "tool", "tool_call_id": "c", "content": "noon"}
    assert second["content"] == [{"type": "text", "text": "one"}]
    assert (again["content"], len(again["tool_calls"])) == (None, 1)


def test_a_conversation_goes_on(server: TinyServer) -> None:
    first = answered(server, "hi", instructions="Be short.", metadata={"a": "b"})
    stored = server.get(f"{ROUTE}/{first['id']}").json()
    assert stored == first
    assert stored["metadata"] == {"a": "b"}
    second = answered(server, "more", previous_response_id=first["id"])
    by_hand = [{"role": "user", "content": "hi"}, *first["output"],
               {"role": "user", "content": "more"}]  # fmt: skip
    same = answered(server, by_hand)
    assert said(second) == said(same)  # instructions are not carried over
    by_reference = [{"role": "user", "content": "hi"},
                    {"type": "item_reference", "id": first["output"][0]["id"]},
                    {"role": "user", "content": "more"}]  # fmt: skip
    assert said(answered(server, by_reference)) == said(same)
    events = events_of(server, "again", previous_response_id=second["id"])
    third = events[-1]["response"]
    assert server.get(f"{ROUTE}/{third['id']}").json() == third
    reply = server.call("DELETE", f"{ROUTE}/{second['id']}")
    assert (reply.status, reply.json()["deleted"]) == (200, True)
    assert server.call("DELETE", f"{ROUTE}/{second['id']}").status == 404
    gone = server.get(f"{ROUTE}/{second['id']}")
    assert (gone.status, gone.error["param"]) == (404, "response_id")
    fourth = answered(server, "on", previous_response_id=third["id"])
    long_way = [*by_hand, *second["output"], {"role": "user", "content": "again"},
                *third["output"], {"role": "user", "content": "on"}]  # fmt: skip
    assert said(fourth) == said(answered(server, long_way))
    for not_kept in (second["id"], answered(server, store=False)["id"], "resp_1", ""):
        reply = server.post(ROUTE, asked(previous_response_id=not_kept))
        assert (reply.status, reply.error["code"]) == (400, "previous_response_not_found")
        assert reply.error["param"] == "previous_response_id"


def test_a_call_and_its_output_over_two_requests(server: TinyServer) -> None:
    fields: dict[str, Any] = {"tools": FUNCTIONS, "max_output_tokens": 200, "ignore_eos": False}
    text = '<tool_call>{"name": "clock", "arguments": {"a": 1}}</tool_call>'
    with forced(server, saying(text)):
        first = answered(server, "hi", **fields)
    (call,) = first["output"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "noon"}
    second = answered(server, [output], previous_response_id=first["id"], **fields)
    by_hand = answered(server, [{"role": "user", "content": "hi"}, call, output], **fields)
    assert said(second) == said(by_hand)
    reply = server.post(ROUTE, asked([output], **fields))
    assert (reply.status, reply.error["param"]) == (400, "input")
    assert call["call_id"] in reply.error["message"]


def test_a_call_that_was_cut_off_is_no_part_of_the_conversation(server: TinyServer) -> None:
    weather = {"type": "function", "name": "weather"}
    first = answered(
        server, "hi", tools=FUNCTIONS, tool_choice=weather, ignore_eos=False, temperature=1, seed=1
    )
    assert first["status"] == "incomplete"
    assert answered(server, "more", previous_response_id=first["id"])["output"]


def test_callers_do_not_see_each_other() -> None:
    settings = ServerSettings(api_key=["one", "two"])
    with serving(settings=settings) as server:
        one = Client(server.port, {"Authorization": "Bearer one"})
        two = Client(server.port, {"Authorization": "Bearer two"})
        found = answered(one)
        path = f"{ROUTE}/{found['id']}"
        assert one.get(path).json() == found
        reference = [{"type": "item_reference", "id": found["output"][0]["id"]}]
        assert one.post(ROUTE, asked(reference)).status == 200
        assert two.get(path).status == 404
        assert two.call("DELETE", path).status == 404
        assert two.post(ROUTE, asked(previous_response_id=found["id"])).status == 400
        assert two.post(ROUTE, asked(reference)).error["code"] == "item_not_found"
        for method, where in (("POST", ROUTE), ("GET", path), ("DELETE", path)):
            body = asked() if method == "POST" else None
            assert Client(server.port).call(method, where, body).status == 401
        assert one.get(path).status == 200


def test_a_conversation_that_does_not_fit(server: TinyServer) -> None:
    turns: list[dict[str, Any]] = []
    for number in range(8):
        turns += [
            {"role": "user", "content": f"question {number} " + "the cat sat " * 20},
            {"role": "assistant", "content": "yes"},
        ]
    turns.append({"role": "user", "content": "and now?"})
    room = server.service.max_model_len - 6
    sizes = [prompt_of(server, given=turns[2 * n :], instructions="Be short.") for n in range(6, 9)]
    one_turn = sizes[0] - sizes[1]
    many = turns[:16] * (room // one_turn // 8 + 2) + turns[16:]
    refused = server.post(ROUTE, asked(many, instructions="Be short."))
    assert (refused.status, refused.error["param"]) == (400, "input")
    assert "messages" not in refused.error["message"]
    response = answered(server, many, instructions="Be short.", truncation="auto")
    assert room - one_turn < response["usage"]["input_tokens"] <= room
    assert response["usage"]["output_tokens"] == 6
    left = (room - sizes[-1]) // one_turn
    kept = answered(server, many[-2 * left - 1 :], instructions="Be short.")
    assert said(response) == said(kept)
    huge = asked("the cat " * server.service.max_model_len, truncation="auto")
    assert server.post(ROUTE, huge).error["param"] == "input"


def test_a_failure(server: TinyServer) -> None:
    """Of a stream that has begun is an event; what was said until then stays in it."""
    launches = 0

    def fail(plan: Any) -> None:
        nonlocal launches
        launches += 1
        if launches > 5:
            raise RuntimeError("planted")

    hooks = server.model.engine.runner.hooks
    try:
        hooks.before_launch = fail
        events = events_of(server, max_output_tokens=50)
        launches = 0
        whole = server.post(ROUTE, asked(max_output_tokens=50))
    finally:
        hooks.before_launch = None
    assert (whole.status, whole.error["type"]) == (500, "server_error")
    last = events[-1]["response"]
    assert (events[-1]["type"], last["status"]) == ("response.failed", "failed")
    assert last["error"]["code"] == "server_error"
    (item,) = last["output"]
    assert item["status"] == "incomplete"
    deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    assert item["content"][0]["text"] == "".join(deltas) != ""
    assert server.get(f"{ROUTE}/{last['id']}").status == 404


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input"),
        ({"input": [{"role": "user"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input"),
        ({"input": [{"type": "reasoning", "id": "rs_1", "summary": []}]}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
        ({"input": [{"type": ["message"], "role": "user", "content": ""}]}, "input"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "b"}]}, "input"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "b", "arguments": "{"}]},
         "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 3, "min_tokens": 4}, "min_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"include": [LOGPROBS], "top_logprobs": 99}, "top_logprobs"),
        ({"include": ["everything"]}, "include"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"text": {"verbosity": "low"}}, "text"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format"),
        ({"text": {"format": {"type": "json_object"}}, "guided_regex": "a"}, "text.format"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": TOOLS}, "tools"),
        ({"tools": FUNCTIONS * 2}, "tools"),
        ({"tools": FUNCTIONS, "tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"tools": FUNCTIONS, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"tools": FUNCTIONS, "tool_choice": {"type": "allowed_tools", "mode": "auto",
          "tools": [{"type": "function", "name": "x"}]}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"truncation": "middle"}, "truncation"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"temperature": -1}, "temperature"),
    ],
)  # fmt: skip
def test_what_is_refused(server: TinyServer, fields: dict[str, Any], param: str) -> None:
    reply = server.post(ROUTE, asked(**fields) if "input" not in fields else {**asked(), **fields})
    assert (reply.status, reply.error["param"]) == (400, param), reply.content
    for name in ("messages", "response_format", ".function."):
        if name not in fields:
            assert name not in reply.error["message"]


def test_what_changes_nothing(server: TinyServer) -> None:
    response = answered(
        server,
        background=False,
        include=["reasoning.encrypted_content"],
        reasoning={"effort": None, "summary": "auto"},
        service_tier="auto",
        n=1,
        max_tool_calls=3,
        user="u",
        prompt_cache_key="k",
        safety_identifier="s",
        text={"verbosity": "medium"},
        tool_choice="auto",
        tools=[],
    )
    assert words(response) == words(answered(server))
    told = ("user", "prompt_cache_key", "safety_identifier", "max_tool_calls")
    assert [response[name] for name in told] == ["u", "k", "s", 3]


def test_a_server_may_keep_nothing() -> None:
    with serving(limits=RequestLimits(max_stored_bytes=1)) as server:
        found = answered(server)
        assert server.get(f"{ROUTE}/{found['id']}").status == 404


def test_arguments_that_were_cut_off_are_told_so() -> None:
    output = ResponseOutput(told_logprobs=False)
    call = {"id": "c", "function": {"name": "f", "arguments": ""}}
    events = output.take({"tool_calls": [{"index": 0, **call}]})
    events += output.take({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]})
    events += output.end(completed=False)
    (item,) = rebuilt([{**event, "sequence_number": 0} for event in events])
    assert (item["status"], item["arguments"]) == ("incomplete", '{"a":')
