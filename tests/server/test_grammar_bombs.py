"""Forms of answers that are made to take for ever: refused, while others are served."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from paxkv.sampling.structured_outputs import StructuredOutputsParams
from paxkv.server.grammar.trial import GrammarTrial
from paxkv.server.limits import RequestLimits
from tests.server.tiny_server import TinyServer, chat, completion, serving

CHAT = "/v1/chat/completions"
# Seconds; without a limit the endless ones take minutes, twenty of them in a row hours.
PATIENCE = 20
ENDLESS = {"allOf": [{"type": "string", "pattern": f".*{n}.*"} for n in range(200)]}
NESTED: dict[str, Any] = {"type": "integer"}
for _ in range(300):
    NESTED = {"type": "object", "properties": {"a": NESTED}, "required": ["a"]}
DOUBLED = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
BOMBS: dict[str, dict[str, Any]] = {
    "endless": {"guided_json": ENDLESS},
    "nested": {"guided_json": NESTED},
    "itself": {"guided_json": {"$ref": "#"}},
    "elsewhere": {"guided_json": {"$ref": "http://127.0.0.1:1/"}},
    "doubled": {"guided_json": {"$defs": {**DOUBLED, "d40": {}}, "$ref": "#/$defs/d0"}},
    "million items": {"guided_json": {"type": "array", "minItems": 10**6}},
    "long string": {"guided_json": {"type": "string", "minLength": 10**7}},
    "repetitions": {"guided_regex": "((a{1,1000}){1,1000}){1,1000}"},
    "backtracking": {"guided_regex": "(a|a)*(a?){300}a{300}b"},
    "determinising": {"guided_regex": "(a|b)*a(a|b){40}"},
    "parentheses": {"guided_regex": "(" * 5000 + "a" + ")" * 5000},
    "wide": {"guided_regex": "[\\s\\S]{0,100000}"},
    "rules": {"guided_grammar": "start: r0\n" + "".join(
        f'r{n}: r{n + 1} r{n + 1} | "a"\n' for n in range(500)) + 'r500: "b"'},
    "ambiguous": {"guided_grammar": 'start: start start | "a" | ""'},
    "deep rules": {"guided_grammar": "start: " + "(" * 3000 + '"a"' + ")" * 3000},
    "tools": {"tool_choice": "required", "tools": [
        {"type": "function", "function": {"name": "f", "parameters": ENDLESS}}]},
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[TinyServer]:
    with serving(limits=RequestLimits(max_grammar_seconds=1.0)) as server:
        yield server


@contextmanager
def canaries(server: TinyServer) -> Iterator[list[float]]:
    """Plain requests one after the other, and the seconds that each took."""
    seconds: list[float] = []
    over = threading.Event()
    want = server.post("/v1/completions", completion("the cat")).json()["choices"]

    def run() -> None:
        while not over.is_set():
            start = time.monotonic()
            found = server.post("/v1/completions", completion("the cat")).json()["choices"]
            seconds.append(time.monotonic() - start if found == want else float("inf"))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield seconds
    finally:
        over.set()
        thread.join()


def test_bombs_delay_nobody(server: TinyServer) -> None:
    first = server.post(CHAT, chat(guided_regex="a+"))  # starts the process that tries them
    assert first.status == 200
    with canaries(server) as seconds:
        for name, fields in BOMBS.items():
            start = time.monotonic()
            reply = server.post(CHAT, chat(**fields))
            assert reply.status in (200, 400), (name, reply.content)
            assert time.monotonic() - start < PATIENCE, name
            if reply.status == 400:
                assert reply.error["param"] in (*fields, None), name
                assert len(reply.content) < 800
    assert len(seconds) > 10
    assert max(seconds) < PATIENCE
    assert server.post(CHAT, chat(guided_choice=["red"])).status == 200
    server.wait_idle()


def test_what_takes_too_long_is_said(server: TinyServer) -> None:
    reply = server.post(CHAT, chat(guided_json=ENDLESS))
    assert (reply.status, reply.error["param"]) == (400, "guided_json")
    assert "max_grammar_seconds=1" in reply.error["message"]


def test_who_waits_for_the_compiler_and_goes_is_forgotten(server: TinyServer) -> None:
    """A crowd of them is gone at once, and the next one is not behind it."""
    crowd = [
        server.open("POST", CHAT, chat(guided_json={**ENDLESS, "title": str(number)}))
        for number in range(20)
    ]
    with canaries(server) as seconds:
        time.sleep(0.5)
        for connection in crowd:
            connection.close()
        start = time.monotonic()
        assert server.post(CHAT, chat(guided_choice=["blue"])).status == 200
        assert time.monotonic() - start < PATIENCE
    assert max(seconds) < PATIENCE
    server.wait_idle()


def test_those_who_wait_are_bounded_and_what_is_compiled_waits_for_nobody() -> None:
    limits = RequestLimits(max_grammar_seconds=60, max_waiting_grammars=2)
    with serving(limits=limits) as server:
        known = chat(guided_regex="(known)+")
        assert server.post(CHAT, known).status == 200
        held = [
            server.open("POST", CHAT, chat(guided_json={**ENDLESS, "title": str(number)}))
            for number in range(2)
        ]
        waiting = server.service.grammar_queue._waiting
        server.wait_until(lambda: len(waiting) == 2)
        assert server.post(CHAT, known).status == 200
        reply = server.post(CHAT, chat(guided_regex="(new)+"))
        assert (reply.status, reply.error["code"]) == (503, "queue_full")
        assert int(reply.headers["retry-after"]) >= 1
        assert "max_waiting_grammars=2" in reply.error["message"]
        assert len(waiting) == 2
        for connection in held:
            connection.close()
        server.wait_until(lambda: not waiting)


def test_many_choices(server: TinyServer) -> None:
    choices = [f'{number} \U0001f600 "\\\n' for number in range(4000)]
    body = chat(guided_choice=choices, max_tokens=60, temperature=1, seed=1, ignore_eos=False)
    assert server.post(CHAT, body).json()["choices"][0]["message"]["content"] in choices


def test_a_process_that_dies_is_replaced(server: TinyServer) -> None:
    trial = GrammarTrial(server.model.input_processor.grammars, 5.0)
    try:
        trial.check(StructuredOutputsParams(regex="a+"))
        process = trial._process
        assert process is not None
        process.kill()
        process.wait()
        trial.check(StructuredOutputsParams(regex="b+"))
        assert trial._process is not process
        trial.check(StructuredOutputsParams(regex="a+"))  # remembered
        with pytest.raises(ValueError, match="json cannot be compiled"):
            trial.check(StructuredOutputsParams(json=json.dumps({"type": 7})))
    finally:
        trial.close()
    assert trial._process is None


def test_the_process_does_not_outlive_one_that_nobody_waits_for(server: TinyServer) -> None:
    """As when the server was killed: nobody ends it."""
    question = {**server.model.input_processor.grammars.vocabulary(), "seconds": 0.5}
    process = subprocess.Popen(
        [sys.executable, "-m", "paxkv.text.grammar_process"], stdin=subprocess.PIPE
    )
    try:
        assert process.stdin is not None
        for line in (question, ["json", json.dumps(ENDLESS)]):
            process.stdin.write(json.dumps(line).encode() + b"\n")
        process.stdin.flush()
        assert process.wait(60) == -signal.SIGALRM
    finally:
        process.kill()
        process.wait()
