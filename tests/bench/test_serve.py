"""`bench serve` against a server with known delays."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from paxkv.cli.main import main
from tests.bench.stub_server import StubServer, stub_server

LINES = (
    "Successful requests:", "Failed requests:", "Benchmark duration (s):", "Total input tokens:",
    "Total generated tokens:", "Request throughput (req/s):", "Output token throughput (tok/s):",
    "Peak output token throughput (tok/s):", "Peak concurrent requests:",
    "Total token throughput (tok/s):",
    *(f"{what} {name} (ms):" for name in ("TTFT", "TPOT", "ITL", "E2EL")
      for what in ("Mean", "Median", "P50", "P95", "P99")),
)  # fmt: skip


def bench(server: StubServer, *flags: str) -> int:
    return main(["bench", "serve", "--base-url", server.url, "--input-len", "4", *flags])


def figures(text: str) -> dict[str, float]:
    return {
        label: float(value)
        for label, value in re.findall(r"^(.{39}[^ ]|.{40}) ([\d.]+) *$", text, re.M)
        for label in [label.strip()]
    }


def test_the_delays_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """TTFT 0.3 s, then 0.1 s a token; four requests one after the other take four times that."""
    out = tmp_path / "out.json"
    with stub_server(0.3, 0.1, 0.1, 0.1) as server:
        code = bench(
            server, "--num-prompts", "4", "--max-concurrency", "1", "--goodput", "ttft:10000",
            "tpot:10000", "--json", str(out), "--num-warmups", "0",
        )  # fmt: skip
        assert server.most == 1
        assert len(server.bodies) == 4
    assert code == 0
    text = capsys.readouterr().out
    found = figures(text)
    assert set(LINES) <= set(found)
    # A busy machine only ever adds to a delay.
    assert 300 <= found["Mean TTFT (ms):"] < 580
    assert 100 <= found["Mean TPOT (ms):"] + 5 < 290
    assert 100 <= found["Median ITL (ms):"] + 5 < 290
    assert 600 <= found["Median E2EL (ms):"] < 1200
    assert found["Successful requests:"] == 4
    assert found["Maximum request concurrency:"] == 1
    assert (found["Total input tokens:"], found["Total generated tokens:"]) == (44, 16)
    assert 2.4 <= found["Benchmark duration (s):"] < 5
    duration = found["Benchmark duration (s):"]
    assert found["Request goodput (req/s):"] == pytest.approx(4 / duration, abs=0.01)
    assert found["Output token throughput (tok/s):"] == pytest.approx(16 / duration, abs=0.05)
    (run,) = json.loads(out.read_text())["runs"]
    assert run["model_id"] == "stub"
    assert [len(itls) for itls in run["itls"]] == [3] * 4
    assert run["mean_ttft_ms"] == pytest.approx(1000 * sum(run["ttfts"]) / 4)


def test_what_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    with stub_server(0.0) as server:
        flags = "--num-prompts 3 --output-len 9 --temperature 0.5 --ignore-eos --api-key k1"
        assert bench(server, *flags.split()) == 0
        assert len(server.bodies) == 4
        for body, headers in zip(server.bodies, server.headers, strict=True):
            assert len(body.pop("prompt")) == 4
            assert headers["Authorization"] == "Bearer k1"
            assert body == {"model": "stub", "max_tokens": 9, "temperature": 0.5,
                            "ignore_eos": True, "stream": True,
                            "stream_options": {"include_usage": True}}  # fmt: skip
    assert "k1" not in "".join(capsys.readouterr())


def test_concurrency_is_capped_and_compared(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="the picture needs: pip install 'paxkv[plot]'")
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    with stub_server(0.05, 0.02) as server:
        flags = f"--num-prompts 12 --max-concurrency 2 6 --json {out} --plot {picture}"
        assert bench(server, *flags.split(), "--server-pid", str(os.getpid())) == 0
        assert server.most == 6
        prompts = [tuple(body["prompt"]) for body in server.bodies]
        assert len(set(prompts)) == 25
    runs = json.loads(out.read_text())["runs"]
    assert [run["max_concurrency"] for run in runs] == [2, 6]
    assert [run["max_concurrent_requests"] for run in runs] == [2, 6]
    assert runs[0]["duration"] > runs[1]["duration"]
    assert all(run["peak_memory_bytes"] > 10 * 2**20 for run in runs)
    text = capsys.readouterr().out
    assert text.count("Serving Benchmark Result") == 2
    assert "By concurrency" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_arrivals_are_kept(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with stub_server(0.0) as server:
        flags = f"--num-prompts 6 --request-rate 20 --arrivals fixed --json {out}"
        assert bench(server, *flags.split()) == 0
    (run,) = json.loads(out.read_text())["runs"]
    for number, start in enumerate(run["start_times"]):
        assert number / 20 <= start + 1e-3 < number / 20 + 0.5


def test_failures_are_counted_and_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with stub_server(0.0, 0.0) as server:
        server.refuse = lambda body: len(server.bodies) == 3
        server.cut = lambda body: len(server.bodies) == 5
        flags = f"--num-prompts 6 --max-concurrency 1 --num-warmups 0 --json {out}"
        assert bench(server, *flags.split()) == 0
    text, errors = capsys.readouterr()
    found = figures(text)
    assert (found["Successful requests:"], found["Failed requests:"]) == (4, 2)
    (run,) = json.loads(out.read_text())["runs"]
    assert [bool(error) for error in run["errors"]] == [False, False, True, False, True, False]
    assert "status 503" in errors
    assert "without [DONE]" in errors


def test_chat_counts_from_the_first_word(tmp_path: Path) -> None:
    """Not from the piece that only says who speaks."""
    out = tmp_path / "out.json"
    file = tmp_path / "asks.jsonl"
    file.write_text('{"prompt": "hello", "max_tokens": 3}\n')
    with stub_server(0.3, 0.0) as server:
        flags = f"--backend openai-chat --dataset-name jsonl --dataset-path {file} --num-prompts 2"
        assert bench(server, *flags.split(), "--json", str(out)) == 0
        assert server.bodies[0]["messages"] == [{"role": "user", "content": "hello"}]
        assert bench(server, "--backend", "openai-chat") == 2
    (run,) = json.loads(out.read_text())["runs"]
    assert all(0.3 <= ttft < 0.9 for ttft in run["ttfts"])
    assert [len(itls) for itls in run["itls"]] == [1, 1]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--base-url ftp://x", "--base-url"),
        ("--base-url http://127.0.0.1:9", "cannot be reached"),
        ("--max-concurrency 0", "--max-concurrency"),
        ("--metric-percentiles 50,101", "--metric-percentiles"),
        ("--goodput itl:3", "goodput"),
        ("--num-prompts 0", "--num-prompts"),
        ("--model m --base-url http://127.0.0.1:9", "before the run failed"),
    ],
)
def test_what_cannot_be_is_said(capsys: pytest.CaptureFixture[str], flags: str, words: str) -> None:
    assert main(["bench", "serve", *flags.split()]) == 2
    assert words in capsys.readouterr().err


def test_a_server_that_is_not_there() -> None:
    with stub_server(0.0) as server:
        assert bench(server, "--num-prompts", "1", "--server-pid", "999999999") == 2
