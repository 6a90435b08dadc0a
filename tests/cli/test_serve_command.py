"""`paxkv serve` where it cannot start: one sentence that says why, and exit code 2."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file
from small_model import write_small_model

from paxkv.cli.dataclass_flags import given_values
from paxkv.cli.main import build_parser, main
from paxkv.server.limits import RequestLimits


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model"))


def said(model: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    arguments = ["serve", "--port", "0", "--model", str(model), "--enforce-eager", *options]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--kv-cache-memory-bytes 100", ("--kv-cache-memory-bytes", "--max-model-len")),
        (
            "--no-enable-chunked-prefill --max-num-batched-tokens 64",
            ("--max-num-batched-tokens=64",),
        ),
        ("--max-num-seqs 9 --max-num-batched-tokens 8", ("--max-num-batched-tokens=8",)),
        ("--max-model-len 999999", ("--max-model-len=999999",)),
        ("--ssl-keyfile a", ("--ssl-certfile",)),
        ("--api-key-file /no/such/file", ("--api-key-file",)),
        ("--chat-template {%bad", ("--chat-template",)),
        ("--max-queue-wait nan", ("--max-queue-wait",)),
        ("--host 999.1.1.1", ("--host",)),
    ],
)
def test_options(
    model: Path, capsys: pytest.CaptureFixture[str], options: str, words: tuple[str, ...]
) -> None:
    found = said(model, capsys, *options.split())
    assert all(word in found for word in words), found


def test_every_limit_can_be_set() -> None:
    """The table of docs/server.md, each by its flag."""
    given = {field.name: index + 1 for index, field in enumerate(dataclasses.fields(RequestLimits))}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    args = build_parser("serve").parse_args(["serve", "--model", "m", *flags])
    assert RequestLimits(**given_values(args, RequestLimits)) == RequestLimits(**given)


def test_a_broken_model(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = write_small_model(tmp_path)
    file = broken / "model.safetensors"
    kept = {name: array for name, array in load_file(file).items() if name != "model.norm.weight"}
    save_file(kept, file)
    assert "model.norm.weight" in said(broken, capsys)
    assert "absent" in said(tmp_path / "absent", capsys)
