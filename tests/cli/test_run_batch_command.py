"""`paxkv run-batch` as a process, killed and gone on with."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_model import FLAGS, write_small_model

from paxkv.cli.main import main

LINES = 60


def arguments(model: Path, *more: str) -> list[str]:
    return ["run-batch", "--model", str(model), *FLAGS.split(), *more]


def test_killed_and_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What had been written is kept, all else is answered, and a bad line is an exit code."""
    model = write_small_model(tmp_path / "model")
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    partial = tmp_path / "out.jsonl.partial"
    lines = [
        {"prompt": f"w{number} w{number + 1}", "max_tokens": 200, "temperature": 0.0}
        for number in range(3, 2 + LINES)
    ]
    texts = [json.dumps({**line, "ignore_eos": True}) for line in lines]
    source.write_text("\n".join(["not json", *texts, ""]))
    files = ["--input-file", str(source), "-o", str(target)]
    program = [sys.executable, "-m", "paxkv.cli.main", *arguments(model, *files)]
    process = subprocess.Popen(program, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 90
    while not partial.exists() or partial.read_text().count("\n") < 5:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.005)
    process.kill()
    process.wait()
    kept = partial.read_text().splitlines()
    assert 5 <= len(kept) < LINES
    assert not target.exists()

    files = ["-i", str(source), "-o", str(target), "--resume"]
    assert main(arguments(model, *files)) == 1
    said = capsys.readouterr().err
    assert f"{LINES - len(kept)} answered, 1 failed, {len(kept)} kept" in said
    assert "Batch: 100%" in said, "no progress bar"
    assert not partial.exists()
    results = [json.loads(line) for line in target.read_text().splitlines()]
    assert [r["custom_id"] for r in results[1:]] == [f"line-{n}" for n in range(2, LINES + 1)]
    assert [bool(result["error"]) for result in results] == [True] + [False] * (LINES - 1)
    found = {json.dumps(result) for result in results}
    assert all(json.dumps(json.loads(line)["result"]) in found for line in kept)
