"""Many clients at once, some of which go away, run out of time or are wrong.

    python -m tests.server.load --clients 200 --seconds 300 --json benchmarks/results/load.json

serves SmolLM2, as `pytest -m full` does, and keeps the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paxkv.bench.throughput import machine
from paxkv.sampling.sampling_params import SamplingParams
from paxkv.server.settings import ServerSettings
from tests.regressions.test_metrics import Scrape, check_idle
from tests.server.tiny_server import TinyServer, serving

PATH = "/v1/completions"
TOKENS = 24
LONG = 120
KINDS = ("stream", "stream", "stream", "whole", "leave", "cancel", "deadline", "mistake")
FORMS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0},
    {"temperature": 0.9, "seed": 7},
    {"temperature": 1.1, "seed": 11, "top_p": 0.9, "n": 2},
    {"temperature": 0.8, "seed": 3, "presence_penalty": 0.5, "top_k": 40},
)
MISTAKES: tuple[tuple[int, Any], ...] = (
    (400, {"prompt": "a", "n": 0}),
    (400, {"prompt": "a", "temperature": "hot"}),
    (400, {"prompt": "a " * 4000, "max_tokens": 4}),
    (400, {"prompt": [10**9], "max_tokens": 4}),
    (400, {"prompt": "a", "suffix": "b"}),
    (404, {"prompt": "a", "model": "gpt-5"}),
    (400, b'{"prompt": "a"'),
    (400, b'{"prompt": ' + b"[" * 3000),
)
LOOK_EVERY = 0.5  # seconds


@dataclass(frozen=True)
class Question:
    """A request, and what it is answered when nobody else asks."""

    body: dict[str, Any]
    want: list[str]

    @property
    def long(self) -> bool:
        return self.body["max_tokens"] == LONG


def questions(model: Any, prompts: list[str]) -> list[Question]:
    """Every prompt in every form, answered by the engine alone, one after the other."""
    found = []
    for prompt in prompts:
        for form in FORMS:
            for length in (TOKENS, LONG):
                fields = {**form, "max_tokens": length, "ignore_eos": True}
                request = model.input_processor.request(
                    {"prompt": prompt}, SamplingParams(**fields), request_id="alone"
                )
                model.engine.add(request)
                while model.engine.has_work:
                    model.engine.step()
                texts = [output.text for output in request.output().outputs]
                found.append(Question({"prompt": prompt, **fields}, texts))
    return found


@dataclass
class Reply:
    """status: 0 if nothing came before the client left. cut: it did not wait for the end."""

    status: int
    head: str
    text: str
    cut: bool


async def ask(port: int, content: bytes, chance: random.Random, leave: str = "") -> Reply:
    """Send a body. leave: "at once" after some time whatever has come, "reading" after some
    events, else the answer is read to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(content)}"
    writer.write(f"{head}\r\nContent-Type: application/json\r\n\r\n".encode() + content)
    got = b""
    try:
        if leave == "at once":
            await asyncio.sleep(chance.random())
            return Reply(0, "", "", True)
        most = chance.randint(1, 8) if leave else None
        while part := await reader.read(1 << 16):
            got += part
            if most is not None and got.count(b"data: ") >= most:
                break
    finally:
        writer.close()
    head, _, text = got.decode(errors="ignore").partition("\r\n\r\n")
    return Reply(int(head.split()[1]), head.lower(), text, bool(leave))


def streamed(reply: Reply, n: int) -> tuple[list[str], bool]:
    """The texts of a stream's choices as far as they came, and whether that was all."""
    texts = [""] * n
    ended = set()
    lines = reply.text.split("\n\n")[:-1]  # what a cut left of an event is no line
    events = [line[line.index("data: ") + 6 :] for line in lines if "data: " in line]
    assert reply.cut or events[-1] == "[DONE]", reply.text
    for event in events:
        if event == "[DONE]":
            continue
        value = json.loads(event)
        if "error" in value:
            assert value["error"]["type"] == "timeout_error", value
            return texts, False
        for choice in value["choices"]:
            texts[choice["index"]] += choice["text"]
            if choice["finish_reason"] is not None:
                assert choice["finish_reason"] == "length", choice
                ended.add(choice["index"])
    assert reply.cut or len(ended) == n, reply.text
    return texts, len(ended) == n


@dataclass
class Load:
    """Clients that come back as soon as they are done, until the time is over.

    counts: of requests, by kind and by how they ended. resident: bytes of this process, looked at
    now and then.
    """

    port: int
    questions: list[Question]
    counts: Counter[str] = field(default_factory=Counter)
    resident: list[int] = field(default_factory=list)

    def run(self, clients: int, seconds: float) -> None:
        asyncio.run(self._run(clients, seconds))

    async def _run(self, clients: int, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        watch = asyncio.create_task(self._look())
        await asyncio.gather(*[self._client(random.Random(number)) for number in range(clients)])
        watch.cancel()

    async def _look(self) -> None:
        while True:
            self.resident.append(resident_bytes())
            await asyncio.sleep(LOOK_EVERY)

    async def _client(self, chance: random.Random) -> None:
        while time.monotonic() < self._end:
            kind = chance.choice(KINDS)
            status = await self._one(kind, chance)
            self.counts[f"{kind}: {status or 'left'}"] += 1
            if status == 503:
                await asyncio.sleep(chance.random() / 4)

    async def _one(self, kind: str, chance: random.Random) -> int:
        if kind == "mistake":
            want, wrong = chance.choice(MISTAKES)
            content = wrong if isinstance(wrong, bytes) else json.dumps(wrong).encode()
            reply = await ask(self.port, content, chance)
            assert reply.status == want, (wrong, reply)
            return reply.status
        stream = kind != "whole" and (kind != "deadline" or chance.random() < 0.5)
        question = chance.choice([q for q in self.questions if q.long == (kind == "deadline")])
        fields = {**question.body, "stream": stream}
        if kind == "deadline":
            fields["timeout"] = chance.choice((0.01, 0.3, 3.0))
        leave = {"leave": "at once", "cancel": "reading"}.get(kind, "")
        reply = await ask(self.port, json.dumps(fields).encode(), chance, leave)
        if reply.status == 0:
            return 0
        if reply.status == 503:
            assert "retry-after: " in reply.head, reply
            return 503
        if kind == "deadline" and reply.status == 408:
            return 408
        assert reply.status == 200, reply
        if stream:
            texts, whole = streamed(reply, len(question.want))
        else:
            texts, whole = [c["text"] for c in json.loads(reply.text)["choices"]], True
        for text, want in zip(texts, question.want, strict=True):
            assert text == want if whole else want.startswith(text), (question.body, text, want)
        assert whole or kind in ("cancel", "deadline"), reply
        self.counts["answers equal, finished" if whole else "answers equal, cut short"] += 1
        return 200


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def load(
    model: Any, name: str, prompts: list[str], *, clients: int, warm: float, seconds: float
) -> dict[str, Any]:
    """Put load on for `seconds` after `warm` of it; raise AssertionError for what is wrong.

    Resident memory is of this process, server and clients: at the start and the end of those
    seconds, when nothing runs, and at most in between.
    """
    asked = questions(model, prompts)
    settings = ServerSettings(max_num_queued_reqs=clients // 2)
    with serving(model, settings, name=name) as server:
        _part(server, asked, clients, warm)
        before = resident_bytes()
        start = Scrape(server)
        found = _part(server, asked, clients, seconds)
        after = resident_bytes()
        end = Scrape(server)
    return {
        "clients": clients,
        "seconds": seconds,
        "requests": dict(sorted(found.counts.items())),
        "output_tokens": int(end["generation_tokens_total"] - start["generation_tokens_total"]),
        "preemptions": int(end["num_preemptions_total"] - start["num_preemptions_total"]),
        "resident_bytes": {"start": before, "peak": max(found.resident), "end": after},
        "resident_end_over_start": round(after / before, 4),
        "resident_peak_over_start": round(max(found.resident) / before, 4),
    }


def _part(server: TinyServer, asked: list[Question], clients: int, seconds: float) -> Load:
    found = Load(server.port, asked)
    found.run(clients, seconds)
    server.wait_until(lambda: not server.service.loop.calls)
    server.wait_idle()
    check_idle(Scrape(server))
    gc.collect()
    return found


def real_model() -> Any:
    from paxkv import LLM

    return LLM(
        "smollm2-135m",
        dtype="float32",
        deterministic=True,
        max_num_seqs=32,
        max_num_batched_tokens=64,
        max_model_len=512,
        num_gpu_blocks_override=160,
    )


def real_load(clients: int, seconds: float) -> dict[str, Any]:
    prompts = [f"{number} things to know about pages:" for number in range(2, 8)]
    return load(
        real_model(), "smollm2-135m", prompts, clients=clients, warm=seconds / 5, seconds=seconds
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    figures = {"machine": machine(), **real_load(arguments.clients, arguments.seconds)}
    text = json.dumps(figures, indent=2)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
