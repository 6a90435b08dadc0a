"""The real model through `paxkv serve`, as a process, next to its offline answers."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from paxkv.sampling.sampling_params import SamplingParams
from tests.server.tiny_server import Client

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = (
    "--model smollm2-135m --port 0 --dtype float32 --max-num-seqs 4 --max-num-batched-tokens 64 "
    "--max-model-len 512 --num-gpu-blocks-override 127 --enforce-eager"
)
QUESTIONS = ["What is a page table?", "Name three colours.", "Count to five.", "Say hello."]


def test_served_answers_are_the_offline_answers(smollm: Any, tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=16)
    conversations = [[{"role": "user", "content": text}] for text in QUESTIONS]
    offline = smollm.chat(conversations, params, use_tqdm=False)
    log = tmp_path / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "paxkv.server", *OPTIONS.split()], cwd=ROOT, stderr=output
        )
    try:
        until = time.monotonic() + 120
        while "listening on" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until
            time.sleep(0.1)
        line = next(x for x in log.read_text().splitlines() if "listening on" in x)
        client = Client(int(line.rsplit(":", 1)[1]))
        replies: dict[int, Any] = {}

        def ask(number: int) -> None:
            body = {"messages": conversations[number], "temperature": 0, "max_tokens": 16}
            replies[number] = client.post("/v1/chat/completions", body).json()

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(len(QUESTIONS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, output in enumerate(offline):
            message = replies[number]["choices"][0]["message"]
            assert message["content"] == output.outputs[0].text
            assert replies[number]["usage"]["prompt_tokens"] == len(output.prompt_token_ids)
            assert replies[number]["model"] == "smollm2-135m"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
