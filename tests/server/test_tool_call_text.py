"""Tool calls in the text of an answer: whatever it holds and however it is cut, what a stream
tells is what the whole answer says, and arguments are a JSON object or there is no call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paxkv.server.tools.chat_text import ChatText
from paxkv.server.tools.json_scan import JsonScan
from paxkv.server.tools.tool_calls import ForcedCalls, HermesCalls, LlamaCalls

CLOCK = '{"name": "clock", "arguments": {}}'


def block(inside: str) -> str:
    return f"<tool_call>{inside}</tool_call>"


def call(arguments: str) -> str:
    return f'{{"name": "clock", "arguments": {arguments}}}'


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    value = json.loads(text, parse_constant=refuse)
    json.dumps(value, allow_nan=False)
    return value


def whole(reader: Any, text: str) -> tuple[str, list[tuple[str, str]], bool]:
    """Content, calls and whether any was counted, of an answer told at once."""
    answer = ChatText(reader)
    message = answer.message(text)
    calls = [call["function"] for call in message.get("tool_calls", ())]
    assert message["content"] != "" or not calls
    return (
        message["content"] or "",
        [(f["name"], f["arguments"]) for f in calls],
        answer.num_calls > 0,
    )


def streamed(reader: Any, parts: list[str]) -> tuple[str, list[tuple[str, str]], bool]:
    """The same of an answer told in parts, put together as clients do."""
    answer = ChatText(reader)
    deltas = [d for part in parts for d in answer.deltas(part, ended=False)]
    deltas += answer.deltas("", ended=True)
    calls: list[list[str]] = []
    for new in (new for delta in deltas for new in delta.get("tool_calls", ())):
        if "id" in new:
            assert new["index"] == len(calls)
            calls.append([new["function"]["name"], ""])
        calls[new["index"]][1] += new["function"]["arguments"]
    content = "".join(delta.get("content", "") for delta in deltas)
    return content, [(name, arguments) for name, arguments in calls], answer.num_calls > 0


LOST = [
    (block(call('{"a": "</tool_call>"}')), "", [{"a": "</tool_call>"}]),
    (f"Use <tool_call> for it. {block(CLOCK)}", "Use <tool_call> for it.", [{}]),
    (
        f"<think>a <tool_call>? {block(call('[]'))}</think>{block(CLOCK)}",
        f"<think>a <tool_call>? {block(call('[]'))}</think>",
        [{}],
    ),
    (f"<tool_call>{{oops {block(CLOCK)}", "<tool_call>{oops", [{}]),
    (f'<tool_call>{{"name": "clo {block(CLOCK)}', '<tool_call>{"name": "clo', [{}]),
    (block(CLOCK + "\n" + call('{"b": 1}')), "", [{}, {"b": 1}]),
    (block(f"[{CLOCK}, {call('{}')}]"), "", [{}, {}]),
    (block(call('{"a": "x\ny\t"}')), "", [{"a": "x\ny\t"}]),
    (block(CLOCK + "}"), "}</tool_call>", [{}]),
    (f"<tool_call>{CLOCK}\n<tool_call>{CLOCK}", "", [{}, {}]),
    (block(call('"{\\"a\\": 2}"')), "", [{"a": 2}]),
    (f"  Hi\n\n{block(CLOCK)}\n {block(CLOCK)}\n\nBye \n", "  HiBye \n", [{}, {}]),
]


@pytest.mark.parametrize(("text", "content", "arguments"), LOST)
def test_hermes_loses_no_call(text: str, content: str, arguments: list[Any]) -> None:
    """Kind: text that resembles the marks hid calls."""
    for parts in (list(text), [text]):
        said, calls, _ = streamed(HermesCalls(), parts)
        assert (said, [json.loads(given) for _, given in calls]) == (content, arguments)
        assert (said, calls) == whole(HermesCalls(), text)[:2]


NO_ARGUMENTS = ["null", '"x"', "3", "[1]", "true", '{"a": 1e999}', '{"a": NaN}', '{"a": [-1e999]}',
                '"[1]"', '"{\\"a\\": Infinity}"', '""']  # fmt: skip


@pytest.mark.parametrize("arguments", NO_ARGUMENTS)
def test_what_is_no_object_is_content(arguments: str) -> None:
    """Kind: arguments that no client can read as an object."""
    for reader, text in (
        (HermesCalls, block(call(arguments))),
        (HermesCalls, block(f"[{CLOCK}, {call(arguments)}]")),
        (LlamaCalls, call(arguments)),
        (LlamaCalls, f"{CLOCK}; {call(arguments)}"),
    ):
        for parts in (list(text), [text]):
            assert streamed(reader(), parts) == (text, [], False)


def test_a_thought_that_the_prompt_began_is_content() -> None:
    """Kind: a call that is only thought about was made."""
    text = f"try {block(CLOCK)}?</think>\n\n{block(CLOCK)}"
    assert streamed(HermesCalls(thinking=True), list(text))[1] == [("clock", "{}")]
    assert whole(HermesCalls(thinking=True), text)[0] == f"try {block(CLOCK)}?</think>"


PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<tool", "</tool_", "<think>", "</think>", "{", "}", "[", "]",
     '"', "\\", ",", ":", ";", " ", "\n", '"name"', '"clock"', '"arguments"', "1e999", "NaN",
     "null", "true", "-1.5e3", "x", "é\U0001f600", "<|python_tag|>", CLOCK,
     call('{"a": "}</tool_call>\\""}'),
     call('{"b": [1, {"c": null}]}'), call("null"), '{"a": 1}', block(CLOCK), "Let me see."]
)  # fmt: skip
ANSWERS = st.lists(PIECES, max_size=14).map("".join)


def in_parts(data: st.DataObject, text: str) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)])]


@given(ANSWERS, st.sampled_from(["hermes", "thinking", "llama"]), st.data())
def test_streamed_is_whole(text: str, kind: str, data: st.DataObject) -> None:
    """Kind: two readings of one answer."""
    make: Any = {
        "hermes": HermesCalls,
        "thinking": lambda: HermesCalls(thinking=True),
        "llama": LlamaCalls,
    }[kind]
    found = whole(make(), text)
    assert streamed(make(), in_parts(data, text)) == found
    assert streamed(make(), list(text)) == found
    content, calls, counted = found
    assert counted == bool(calls)
    for _, arguments in calls:
        assert isinstance(strict(arguments), dict)
    if not calls:
        assert content == text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8) | st.sampled_from(["</tool_call>", '"}]', "\\", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
OBJECTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=3)


@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=4), OBJECTS), min_size=1, max_size=3), st.data()
)
def test_forced_calls_in_pieces(calls: list[tuple[str, Any]], data: st.DataObject) -> None:
    """Kind: a list of calls cut anywhere; of it, whole calls alone are told at once."""
    indent = data.draw(st.sampled_from([None, 1]))
    items = [{"name": name, "parameters": given} for name, given in calls]
    text = json.dumps(items, indent=indent, ensure_ascii=data.draw(st.booleans()))
    wanted = [(name, json.dumps(given)) for name, given in calls]

    def plain(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
        return [(name, json.dumps(json.loads(given))) for name, given in found]

    content, found, _ = streamed(ForcedCalls(), in_parts(data, text))
    assert (content, plain(found)) == ("", wanted)
    assert whole(ForcedCalls(), text)[:2] == ("", found)
    cut = text[: data.draw(st.integers(0, len(text)))]
    content, some, counted = whole(ForcedCalls(), cut)
    assert (content, plain(some)) == ("", wanted[: len(some)])
    content, told, also_counted = streamed(ForcedCalls(), in_parts(data, cut))
    assert (content, told[: len(some)], also_counted) == ("", some, counted)
    assert len(told) - len(some) in (0, 1)  # what was told of a call cannot be taken back
    name, given = wanted[0]
    assert plain(streamed(ForcedCalls(name), in_parts(data, given))[1]) == wanted[:1]
    shorter = given[: data.draw(st.integers(0, len(given) - 1))]
    assert whole(ForcedCalls(name), shorter) == ("", [], False)


def test_arguments_come_in_pieces() -> None:
    """Kind: a call was held back until it was whole."""
    text = '[{"name": "clock", "parameters": {"city": "Rome", "days": [1, 2]}}]'
    for reader, said in ((ForcedCalls(), text), (ForcedCalls("clock"), '{"city": "Rome"}')):
        answer = ChatText(reader)
        deltas = [d for char in said for d in answer.deltas(char, ended=False)]
        assert len(deltas) > 10
        assert [d["tool_calls"][0]["index"] for d in deltas] == [0] * len(deltas)


@given(st.one_of(VALUES.filter(lambda v: isinstance(v, dict | list)), ANSWERS), st.data())
def test_the_end_of_a_value(value: Any, data: st.DataObject) -> None:
    """Against json: the same end, wrong only where no value can be, and none in what is wrong."""
    text = value if isinstance(value, str) else json.dumps(value)
    scan, at = JsonScan(), 0
    for part in in_parts(data, text):
        at += scan.read(part) if scan.outcome == "open" else 0
    try:
        found, end = json.JSONDecoder(strict=False).raw_decode(text.lstrip(" \n"))
    except ValueError:
        found, end = None, 0
    if isinstance(found, dict | list) and "NaN" not in text:
        assert (scan.outcome, at) == ("whole", end + len(text) - len(text.lstrip(" \n")))
    elif scan.outcome == "whole":
        assert "\\" in text  # an escape that JSON does not have


def test_no_character_is_read_twice() -> None:
    """Kind: every piece read the whole answer again."""
    value = json.dumps({"name": "clock", "arguments": {"text": "x" * 60_000}})
    scan, at, read = JsonScan(), 0, 0
    for end in range(4, len(value) + 4, 4):
        before, at = at, scan.read(value[:end], at)
        assert at > before
        read += at - before
    assert (scan.outcome, at, read) == ("whole", len(value), len(value))
