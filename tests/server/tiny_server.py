"""A real server over the tiny random model: a socket, uvicorn, the engine's thread."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from paxkv.engine.input_processor import InputProcessor
from paxkv.server.app import build_app
from paxkv.server.limits import RequestLimits
from paxkv.server.running import GracefulServer, configuration, listen
from paxkv.server.service import Service
from paxkv.server.settings import ServerSettings
from paxkv.text.tokenizer import Tokenizer
from tests.engine.tiny import CONFIG, Tiny, greedy
from tests.text.small_tokenizers import byte_level

NAME = "tiny"
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool.function.name }} {% endfor %}"
    "<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MODEL = replace(CONFIG, vocab_size=300, eos_token_ids=(2,))


def tokenizer(template: str | None = TEMPLATE) -> Tokenizer:
    templates = {} if template is None else {"default": template}
    return Tokenizer(byte_level(), {"eos_token": "<|im_end|>"}, templates)


class TinyModel(Tiny):
    """A tiny engine with a tokenizer, as a server wants it."""

    def __init__(self, template: str | None = TEMPLATE, **options: Any) -> None:
        super().__init__(MODEL, **{"deterministic": True, **options})
        self._tokenizer = tokenizer(template)
        self.input_processor = InputProcessor(self.engine, MODEL, self._tokenizer)
        self.tokens([5, 6], greedy(3))  # what it compiles must not count in a test's seconds
        self.engine.block_manager.reset_prefix_cache()

    def get_tokenizer(self) -> Tokenizer:
        return self._tokenizer


@cache
def lent_model() -> TinyModel:
    """A model for one server after the other; its compiled programs stay."""
    return TinyModel(max_num_seqs=4, num_gpu_blocks_override=600)


@dataclass
class Reply:
    """A response, read whole."""

    status: int
    headers: dict[str, str]
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content, parse_constant=_no_constant)

    @property
    def error(self) -> dict[str, Any]:
        found = self.json()["error"]
        assert set(found) == {"message", "type", "param", "code"}
        assert found["message"]
        return found


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


class Client:
    """Requests to a port of this machine. headers: sent with each."""

    def __init__(self, port: int, headers: dict[str, str] | None = None) -> None:
        self.port = port
        self.headers = headers or {}

    def open(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> http.client.HTTPConnection:
        """A connection with the request sent; the response is not read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        sent = {**self.headers, **(headers or {})}
        content = body
        if body is not None and not isinstance(body, bytes):
            content = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection.request(method, path, content, sent)
        return connection

    def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Reply:
        connection = self.open(method, path, body, headers)
        try:
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, found, response.read())
        finally:
            connection.close()

    def get(self, path: str, **kwargs: Any) -> Reply:
        return self.call("GET", path, **kwargs)

    def post(self, path: str, body: Any, **kwargs: Any) -> Reply:
        return self.call("POST", path, body, **kwargs)

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream, `[DONE]` as a string."""
        reply = self.post(path, {**body, "stream": True})
        assert reply.status == 200, reply.content
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = reply.content.decode().split("\n\n")
        assert lines.pop() == ""
        data = [line.removeprefix("data: ") for line in lines]
        return [line if line == "[DONE]" else json.loads(line) for line in data]


class TinyServer(Client):
    """A client of a running server, and its engine for looking at."""

    def __init__(self, model: Any, service: Service, server: GracefulServer, port: int) -> None:
        super().__init__(port)
        self.model = model
        self.service = service
        self.server = server

    def on_engine(self, function: Callable[[Any], Any]) -> Any:
        """What `function(engine)` returns, between two steps."""
        future = asyncio.run_coroutine_threadsafe(
            self.service.loop.ask(function), self.server._loop
        )
        return future.result(30)

    def wait_until(self, holds: Callable[[], bool], seconds: float = 10.0) -> None:
        until = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < until, "it never came true"
            time.sleep(0.005)

    def wait_idle(self) -> None:
        """No request, no page and no counter is left."""
        self.wait_until(lambda: not self.service.loop.calls)
        stats = self.on_engine(lambda engine: engine.stats())
        assert (stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0)
        assert stats.free_blocks == stats.num_blocks
        loop = self.service.loop
        assert (loop.backlog.num_requests, loop.backlog.num_tokens) == (0, 0)
        assert not loop._owners
        assert not loop._waiting
        self.on_engine(lambda engine: engine.block_manager.check_invariants())


@contextmanager
def serving(
    model: Any = None,
    settings: ServerSettings | None = None,
    limits: RequestLimits | None = None,
    *,
    name: str = NAME,
) -> Iterator[TinyServer]:
    """A server in a thread of this process, by default of the lent model."""
    model = model or lent_model()
    app = build_app(model, settings, limits, name=name)
    service = app.state.service
    socket = listen("127.0.0.1", 0)
    server = GracefulServer(configuration(service, app), service)
    thread = threading.Thread(target=lambda: server.run([socket]))
    thread.start()
    try:
        until = time.monotonic() + 30
        while not server.started:
            assert thread.is_alive()
            assert time.monotonic() < until
            time.sleep(0.005)
        yield TinyServer(model, service, server, socket.getsockname()[1])
    finally:
        model.engine.runner.hooks.before_launch = None
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def completion(prompt: Any = "the cat", **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "temperature": 0, "max_tokens": 6, "ignore_eos": True, **fields}


def chat(content: Any = "the cat", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    defaults = {"messages": messages, "temperature": 0, "max_tokens": 6, "ignore_eos": True}
    return {**defaults, **fields}


@contextmanager
def forced(server: TinyServer, ids: list[int]) -> Iterator[None]:
    """The model says these ids, and after them what it likes."""
    hooks = server.model.engine.runner.hooks
    hooks.logits = lambda request, child, position: ids[position] if position < len(ids) else None
    try:
        yield
    finally:
        hooks.logits = None


def joined(events: list[Any]) -> dict[int, dict[str, Any]]:
    """A stream's choices put together again, by index."""
    assert events[-1] == "[DONE]"
    choices: dict[int, dict[str, Any]] = {}
    for chunk in events[:-1]:
        for new in chunk["choices"]:
            choice = choices.setdefault(
                new["index"], {"text": "", "logprobs": None, "finish_reason": None}
            )
            choice["text"] += new.get("text") or new.get("delta", {}).get("content") or ""
            if new["logprobs"]:
                if choice["logprobs"] is None:
                    choice["logprobs"] = {
                        key: [] for key, v in new["logprobs"].items() if v is not None
                    }
                for key in choice["logprobs"]:
                    choice["logprobs"][key] += new["logprobs"][key]
            if new["finish_reason"] is not None:
                assert choice["finish_reason"] is None
                choice["finish_reason"] = new["finish_reason"]
                choice["stop_reason"] = new["stop_reason"]
    return choices
