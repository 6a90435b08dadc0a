"""Bug bank: batch files, and runs that do not end."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from paxkv.output_file import OutputFile
from paxkv.server.batch import run_batch
from paxkv.server.batch_file import BatchLine, BatchResults
from tests.server.tiny_server import NAME, lent_model

ROOT = Path(__file__).resolve().parents[2]


def request_line(custom_id: str, text: str, url: str = "/v1/chat/completions", **body: Any) -> str:
    messages = [{"role": "user", "content": text}]
    fields = {"model": NAME, "messages": messages, "max_tokens": 4, "temperature": 0, **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": fields})


def run(tmp_path: Path, lines: list[str], **options: Any) -> tuple[Any, list[dict[str, Any]]]:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(lines) + "\n")
    summary = run_batch(lent_model(), source, target, name=NAME, progress=False, **options)
    assert not list(tmp_path.glob("*.partial"))
    assert not list(tmp_path.glob("*.new"))
    return summary, [json.loads(line) for line in target.read_text().splitlines()]


def failed(result: dict[str, Any]) -> bool:
    return bool(result["error"]) or result["response"]["status_code"] >= 400


def test_api_10_one_line_out_for_each_line_in(tmp_path: Path) -> None:
    lines = [
        request_line("a", "hi"),
        "not json",
        "",
        request_line("a", "again"),
        request_line("b", "x " * 9000),
        request_line("c", "hi", url="/v1/nope"),
        request_line("d", "hi", stream=True),
        request_line("e", "hi", model="nope"),
        "[1]",
        '{"custom_id": "f"}',
        request_line("z", "bye"),
    ]
    summary, out = run(tmp_path, lines)
    assert [result["custom_id"] for result in out if result["custom_id"]] == list("aabcdefz")
    assert [failed(r) for r in out] == [
        False,
        True,
        False,
        True,
        True,
        True,
        True,
        True,
        True,
        False,
    ]
    assert out[1]["error"]["line"] == 2
    assert out[6]["response"]["status_code"] == 404
    assert (summary.answered, summary.failed, summary.resumed) == (3, 7, 0)
    first, second = (out[k]["response"]["body"]["choices"][0]["message"]["content"] for k in (0, 2))
    assert first != second


def test_limits_on_bodies_are_for_servers(tmp_path: Path) -> None:
    line = request_line("a", "hi", metadata={"much": [0] * 600_000})
    assert run(tmp_path, [line])[0].answered == 1


def test_the_simple_form(tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": text, "max_tokens": 3, "temperature": 0.0, "ignore_eos": True})
             for text in ("one", "two", "three")]  # fmt: skip
    lines.append(json.dumps({"prompt": "x", "temperature": -1}))
    summary, out = run(tmp_path, lines)
    assert [result["custom_id"] for result in out] == ["line-1", "line-2", "line-3", "line-4"]
    assert [failed(result) for result in out] == [False, False, False, True]
    usages = [r["response"]["body"]["usage"]["completion_tokens"] for r in out[:3]]
    assert usages == [3, 3, 3]
    assert summary.failed == 1


def test_results_of_an_earlier_run_are_kept(tmp_path: Path) -> None:
    lines = [request_line(str(number), f"text {number}") for number in range(5)]
    _, whole = run(tmp_path, lines)
    kept = BatchResults(OutputFile(tmp_path / "out.jsonl"))
    for number in (2, 4):
        line = BatchLine.parse(number, lines[number - 1])
        kept.add(line, {"custom_id": str(number), "kept": True, "response": {"status_code": 200}})
    kept.add(BatchLine.parse(5, lines[4]), {"not": "final"}, final=False)
    kept.abandon()
    partial = tmp_path / "out.jsonl.partial"
    partial.write_text(partial.read_text() + '{"line": 1, "digest": "')
    with pytest.raises(ValueError, match="--resume"):
        run(tmp_path, lines)
    lines[3] = request_line("3", "changed since")
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(lines) + "\n")
    summary = run_batch(
        lent_model(), source, tmp_path / "out.jsonl", name=NAME, resume=True, progress=False
    )
    out = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert summary.resumed == 1
    assert out[1] == {"custom_id": "2", "kept": True, "response": {"status_code": 200}}
    assert [result.get("custom_id") for result in out] == ["0", "2", "2", "3", "4"]
    assert not any(failed(result) for result in out if "kept" not in result)
    assert out[0]["response"]["body"]["choices"] == whole[0]["response"]["body"]["choices"]


def test_a_fault_of_the_server_is_one_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = lent_model().input_processor.request
    times = {"broken": 0}

    def request(prompt: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs["cache_salt"] == "broken":
            times["broken"] += 1
            raise RuntimeError("injected")
        return own(prompt, *args, **kwargs)

    monkeypatch.setattr(lent_model().input_processor, "request", request)
    salts = ["a", "broken", "b"]
    lines = [request_line(salt, "hi", cache_salt=salt) for salt in salts]
    summary, out = run(tmp_path, lines)
    assert [result["custom_id"] for result in out] == salts
    assert [result["response"]["status_code"] for result in out] == [200, 500, 200]
    assert (summary.answered, summary.failed, times["broken"]) == (2, 1, 1)


def test_embeddings_are_lines_too(tmp_path: Path) -> None:
    body = {"custom_id": "e", "url": "/v1/embeddings", "body": {"input": ["a", "the cat"]}}
    summary, (line,) = run(tmp_path, [json.dumps(body)])
    assert summary.answered == 1
    assert len(line["response"]["body"]["data"]) == 2


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("after", [False, True])
def test_an_end_while_the_file_is_written_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, after: bool
) -> None:
    """Before or after each step there is the old file or the new one, never half of one."""
    target = tmp_path / "out.jsonl"
    target.write_text("an earlier file\n")
    lines = [request_line(str(number), f"text {number}") for number in range(3)]
    own = getattr(os, step)

    def stop(*args: Any) -> None:
        if after:
            own(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, step, stop)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, lines)
    replaced = step == "replace" and after
    assert (target.read_text() == "an earlier file\n") is not replaced
    assert not replaced or target.read_text().count("\n") == 3
    summary, out = run(tmp_path, lines, resume=True)
    assert (summary.resumed, summary.answered) == (3, 0)
    assert [result["custom_id"] for result in out] == ["0", "1", "2"]


def test_kill_9_loses_nothing_that_was_written(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    partial = tmp_path / "out.jsonl.partial"
    lines = [request_line(str(number), f"text {number}", max_tokens=30) for number in range(40)]
    source.write_text("\n".join(lines) + "\n")
    program = (
        "import sys, time; from pathlib import Path; from tests.server.tiny_server import *;"
        "from paxkv.server.batch import run_batch; model = lent_model();"
        "model.engine.runner.hooks.before_launch = lambda _: time.sleep(0.02);"
        "run_batch(model, Path(sys.argv[1]), Path(sys.argv[2]), name=NAME)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, source, target],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 90
        seen = [0]
        while seen[-1] < 6:
            seen.append(partial.read_text().count("\n") if partial.exists() else 0)
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    finally:
        process.kill()
    written = partial.read_text().count("\n")
    # Four lines run at a time: results that wait in a buffer would come in larger numbers.
    assert max(after - before for before, after in itertools.pairwise(seen)) <= 8
    assert not target.exists()
    summary = run_batch(lent_model(), source, target, name=NAME, resume=True, progress=False)
    assert summary.resumed == written >= 6
    assert summary.answered == 40 - written
    resumed = target.read_text()
    run_batch(lent_model(), source, target, name=NAME, progress=False)
    strip = [json.loads(line)["response"]["body"]["choices"] for line in resumed.splitlines()]
    again = [json.loads(x)["response"]["body"]["choices"] for x in target.read_text().splitlines()]
    assert strip == again
