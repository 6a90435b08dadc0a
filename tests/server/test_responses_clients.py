"""OpenAI's own clients of /v1/responses: the Python package, and Node's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest

from tests.server.test_responses import FUNCTIONS, saying
from tests.server.tiny_server import NAME, TinyServer, forced

openai = pytest.importorskip("openai")

FIXED: dict[str, Any] = {"model": NAME, "temperature": 0, "max_output_tokens": 6}
GREEDY: dict[str, Any] = {**FIXED, "extra_body": {"ignore_eos": True}}
CLOCK = '<tool_call>{"name": "clock", "arguments": {"zone": "UTC"}}</tool_call>'
SCRIPT = Path(__file__).with_name("responses_client.mjs")


class Pet(pydantic.BaseModel):
    name: Literal["Rex", "Tom"]
    tame: bool


@pytest.fixture
def client(server: TinyServer) -> Iterator[Any]:
    base = f"http://127.0.0.1:{server.port}/v1"
    with openai.OpenAI(base_url=base, api_key="any", max_retries=0) as found:
        yield found


def test_python_create_and_stream(client: Any) -> None:
    whole = client.responses.create(input="the cat", **GREEDY)
    assert whole.status == "incomplete"
    events = list(client.responses.create(input="the cat", stream=True, **GREEDY))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == (
        whole.output_text
    )
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert client.responses.retrieve(whole.id).output_text == whole.output_text
    following = client.responses.create(input="more", previous_response_id=whole.id, **GREEDY)
    assert following.usage.input_tokens > whole.usage.total_tokens
    client.responses.delete(whole.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(whole.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(input="hi", tools=[{"type": "web_search"}], **GREEDY)
    assert (caught.value.param, caught.value.code) == ("tools", "unsupported")


def test_python_parse(client: Any) -> None:
    given: dict[str, Any] = {"model": NAME, "input": "a pet", "max_output_tokens": 300}
    extra = {"extra_body": {"seed": 4}}
    pet = client.responses.parse(text_format=Pet, **given, **extra).output_parsed
    assert isinstance(pet, Pet)
    with client.responses.stream(text_format=Pet, **given, **extra) as events:
        assert events.get_final_response().output_parsed == pet


def test_python_tools_round_trip(server: TinyServer, client: Any) -> None:
    asked: dict[str, Any] = {"model": NAME, "tools": FUNCTIONS, "max_output_tokens": 200}
    history: list[Any] = [{"role": "user", "content": "What time is it?"}]
    with forced(server, saying(CLOCK)):
        first = client.responses.create(input=history, **asked)
        with client.responses.stream(input=history, **asked) as events:
            kinds = [event.type for event in events]
            again = events.get_final_response()
    (call,) = first.output
    assert (call.type, call.name, json.loads(call.arguments)) == (
        "function_call",
        "clock",
        {"zone": "UTC"},
    )
    assert again.output[0].arguments == call.arguments
    assert "response.function_call_arguments.delta" in kinds
    history += first.output
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": "noon"})
    with forced(server, saying("It is noon.")):
        assert client.responses.create(input=history, **asked).output_text == "It is noon."
        answer = client.responses.create(input=history[-1:], previous_response_id=first.id, **asked)
    assert answer.output_text == "It is noon."


def node_package(folder: Path) -> str:
    """Where node finds the package "openai", installed there if this is CI; skips without."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    given = os.environ.get("PAXKV_NODE_MODULES")
    if given is not None:
        return given
    if os.environ.get("CI") != "true" or shutil.which("npm") is None:
        pytest.skip(
            "the npm package openai is missing: set PAXKV_NODE_MODULES to a node_modules folder "
            "with it, or CI=true to have it installed into a temporary one"
        )
    command = ["npm", "install", "--no-audit", "--no-fund", "--silent", "openai@^6", "zod@^4"]
    subprocess.run(command, cwd=folder, check=True, timeout=300)
    return str(folder / "node_modules")


def test_node(server: TinyServer, tmp_path: Path) -> None:
    modules = node_package(tmp_path)
    (tmp_path / "client.mjs").write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    if not (tmp_path / "node_modules").exists():
        (tmp_path / "node_modules").symlink_to(modules)
    base = f"http://127.0.0.1:{server.port}/v1"

    def run(part: str) -> dict[str, Any]:
        command = ["node", "client.mjs", base, NAME, part, json.dumps(FUNCTIONS)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    text = run("text")
    assert text["streamed"] == text["whole"] == text["retrieved"] == text["final"]
    assert text["whole"]
    assert text["following"] > text["first"]
    assert text["missing"] == 404
    assert text["refused"] == ["tools", "unsupported"]
    pet = run("parse")
    assert pet["name"] in ("Rex", "Tom")
    with forced(server, saying(CLOCK)):
        calls = run("tools")
    assert calls == {"name": "clock", "arguments": {"zone": "UTC"}, "deltas": {"zone": "UTC"}}
