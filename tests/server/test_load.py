"""Many streams at once, some of which go away, run out of time or are wrong: the rest is right."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.bank.test_metrics import Scrape, check_idle
from tests.server.tiny_server import TinyServer, serving

PATH = "/v1/completions"
TOKENS = 24
KINDS = ("stream", "stream", "stream", "whole", "leave", "deadline", "mistake", "crowd")


def body(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, **fields}


async def ask(
    port: int, fields: dict[str, Any], leave_after: float | None = None
) -> tuple[int, str]:
    """Status and body; nothing of it for one that leaves."""
    content = json.dumps(fields).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(content)}"
    writer.write(f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + content)
    try:
        if leave_after is not None:
            await asyncio.sleep(leave_after)
            return 0, ""
        answer = (await reader.read()).decode()
    finally:
        writer.close()
    head, _, rest = answer.partition("\r\n\r\n")
    return int(head.split()[1]), rest


def streamed_text(chunked: str) -> str:
    events = [line[6:] for line in chunked.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])


class Load:
    """Clients that come back as soon as they are done, until the time is over."""

    def __init__(self, port: int, want: dict[str, str]) -> None:
        self.port = port
        self.want = want
        self.counts: Counter[str] = Counter()

    async def run(self, clients: int, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        await asyncio.gather(*[self._client(random.Random(number)) for number in range(clients)])

    async def _client(self, chance: random.Random) -> None:
        while time.monotonic() < self._end:
            kind = chance.choice(KINDS)
            await self._one(kind, chance)
            self.counts[kind] += 1

    async def _one(self, kind: str, chance: random.Random) -> None:
        prompt = chance.choice([*self.want])
        if kind == "leave":
            await ask(self.port, body(prompt, stream=True), leave_after=chance.random())
        elif kind == "mistake":
            status, _ = await ask(self.port, body(prompt, n=0))
            assert status == 400
        elif kind == "deadline":
            status, text = await ask(self.port, body(prompt, timeout=0.01, max_tokens=400))
            assert status == 408, text
        elif kind == "whole":
            status, text = await ask(self.port, body(prompt))
            assert status == 200, text
            assert json.loads(text)["choices"][0]["text"] == self.want[prompt]
        else:
            fields = body(prompt, stream=True, n=2 if kind == "crowd" else 1)
            status, text = await ask(self.port, fields)
            assert status == 200, text
            if kind == "stream":
                assert streamed_text(text) == self.want[prompt]


def resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


def load(server: TinyServer, prompts: list[str], clients: int, seconds: float) -> Counter[str]:
    want = {p: server.post(PATH, body(p)).json()["choices"][0]["text"] for p in prompts}
    found = Load(server.port, want)
    asyncio.run(found.run(clients, seconds))
    server.wait_until(lambda: not server.service.loop.calls)
    server.wait_idle()
    check_idle(Scrape(server))
    return found.counts


def test_sixty_streams() -> None:
    with serving() as server:
        counts = load(server, ["the cat", "sat on", "the mat and the dog ran"], 60, 6.0)
        assert set(counts) == set(KINDS), "too few requests for every kind"


@pytest.mark.full
def test_two_hundred_streams_of_the_real_model() -> None:
    from paxkv import LLM

    llm = LLM(
        "smollm2-135m",
        dtype="float32",
        deterministic=True,
        max_num_seqs=32,
        max_num_batched_tokens=64,
        max_model_len=512,
        num_gpu_blocks_override=800,
    )
    prompts = [f"{number} things to know about pages:" for number in range(2, 10)]
    with serving(llm, name="smollm2-135m") as server:
        load(server, prompts, 200, 60.0)
        before = resident_pages()
        counts = load(server, prompts, 200, 300.0)
        assert resident_pages() < before * 1.02
        assert counts["stream"] > 100
