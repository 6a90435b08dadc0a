"""`bench serve` against this server."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from paxkv.cli.main import main
from tests.server.tiny_server import TinyServer

FLAGS = "--num-prompts 12 --input-len 20 --output-len 10 --vocab-size 290 --ignore-eos"


def run(server: TinyServer, out: Path, *flags: str) -> dict:
    url = f"http://127.0.0.1:{server.port}"
    assert main(["bench", "serve", "--base-url", url, "--json", str(out), *flags]) == 0
    (report,) = json.loads(out.read_text())["runs"]
    return report


def test_a_run(server: TinyServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every token the server counts is in the report, and the other way round."""
    before = server.get("/page/state").json()["traffic"]
    report = run(
        server, tmp_path / "out.json", *FLAGS.split(), "--max-concurrency", "3",
        "--request-rate", "50", "--server-pid", str(os.getpid()), "--goodput", "ttft:60000",
    )  # fmt: skip
    server.wait_idle()
    after = server.get("/page/state").json()["traffic"]
    assert report["model_id"] == "tiny"
    assert (report["completed"], report["failed"]) == (12, 0)
    assert report["total_input_tokens"] == 12 * 20
    assert report["total_output_tokens"] == 12 * 10
    warmed_up = 10
    assert after["generated"] - before["generated"] == 120 + warmed_up
    assert report["max_concurrent_requests"] <= 3
    assert all(len(itls) >= 1 for itls in report["itls"])
    assert report["request_goodput"] == report["request_throughput"]
    text = capsys.readouterr().out
    assert "Peak server memory (GiB):" in text
    # The server's own time to first token lies within the client's.
    own = sorted(seconds for _, seconds in after["first_tokens"][-12:])
    assert own[0] <= max(report["ttfts"])


def test_shared_prefixes_hit_the_cache(server: TinyServer, tmp_path: Path) -> None:
    def hits() -> int:
        return server.on_engine(lambda engine: engine.stats().prefix_cache_hits)

    before = hits()
    flags = f"{FLAGS} --dataset-name shared-prefix --num-prefixes 2 --prefix-len 40 --seed 5"
    report = run(server, tmp_path / "out.json", *flags.split(), "--max-concurrency", "1")
    assert report["total_input_tokens"] == 12 * 60
    server.wait_idle()
    assert hits() - before == 10 * 40


def test_chat(server: TinyServer, tmp_path: Path) -> None:
    file = tmp_path / "asks.jsonl"
    file.write_text('{"prompt": "the cat", "max_tokens": 6, "ignore_eos": true, "n": 2}\n')
    report = run(
        server, tmp_path / "out.json", "--backend", "openai-chat", "--dataset-name", "jsonl",
        "--dataset-path", str(file), "--num-prompts", "2",
    )  # fmt: skip
    assert report["total_output_tokens"] == 2 * 2 * 6
