"""Bug bank: commands whose input or output is closed, full, or of another encoding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
sys.path[:0] = ["tests/cli"]
import types, fake_llm
fake_llm.FakeLLM.answer = "caf\\u00e9 \\u4e2d"
module = types.ModuleType("paxkv.llm")
module.LLM = fake_llm.FakeLLM
sys.modules["paxkv.llm"] = module
from paxkv.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
GENERATE = "generate --model m --quiet"


def run(command: str, redirections: str = "", **environment: str) -> tuple[int, bytes, str]:
    """Exit code, output and errors of a command whose engine answers "café 中" at once."""
    finished = subprocess.run(
        f'"{sys.executable}" -c "$PROGRAM" {command} {redirections}',
        shell=True,
        cwd=ROOT,
        env={**os.environ, "PROGRAM": PROGRAM, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
    )
    return finished.returncode, finished.stdout, finished.stderr.decode()


@pytest.mark.parametrize(
    ("command", "redirection", "reason", "unbuffered"),
    [
        (GENERATE + " hi", ">/dev/full", "No space left on device", ""),
        (GENERATE + " --n 2 hi", ">/dev/full", "No space left on device", "1"),
        ("--version", ">/dev/full", "No space left on device", ""),
        ("--version", ">/dev/full", "No space left on device", "1"),
        (GENERATE + " hi", ">&-", "Bad file descriptor", ""),
    ],
)
def test_output_that_cannot_be_written_is_a_sentence(
    command: str, redirection: str, reason: str, unbuffered: str
) -> None:
    """Not a traceback, nor a success."""
    code, _, errors = run(command, redirection, PYTHONUNBUFFERED=unbuffered)
    assert (code, errors) == (1, f"paxkv: standard output cannot be written: {reason}\n")


def test_an_encoding_without_the_characters_stops_no_answer() -> None:
    assert run(GENERATE + " hi", PYTHONIOENCODING="ascii") == (0, b"caf? ?\n", "")
    code, output, _ = run(GENERATE + " --n 2 $'\\xff'")
    assert code == 0, "a byte of the command line that is no UTF-8"
    assert output.startswith(b">>> ")


def test_odd_input_is_read() -> None:
    """As batch files are: bytes that are no text become U+FFFD."""
    code, _, errors = run(GENERATE + " -", r"<<< $'\xff'".replace("<<<", "<<END\n\xff\nEND\n#"))
    assert (code, errors) == (0, "")


@pytest.mark.parametrize("command", [GENERATE + " -", "chat --model m --quiet"])
def test_closed_input_is_a_sentence(command: str) -> None:
    code, output, errors = run(command, "<&-")
    assert (code, output) == (2, b"")
    assert errors.endswith(": standard input cannot be read: Bad file descriptor\n")
    assert errors.count("\n") == 1


def test_closed_errors_change_nothing() -> None:
    assert run("generate --model m hi", "2>&-") == (0, "café 中\n".encode(), "")


def test_full_errors_change_nothing() -> None:
    """Nothing can be said there, and no work ends for it."""
    assert run("generate --model m hi", "2>/dev/full") == (0, "café 中\n".encode(), "")
    assert run("generate --model missing hi", "2>/dev/full") == (2, b"", "")
    program = (
        "import sys\n"
        "from paxkv.cli.standard_streams import prepare_streams\n"
        "prepare_streams()\n"
        "print('loading', file=sys.stderr)\n"
        "print('done')"
    )
    finished = subprocess.run(
        f'"{sys.executable}" -c "{program}" 2>/dev/full',
        shell=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        stdout=subprocess.PIPE,
    )
    assert (finished.returncode, finished.stdout) == (0, b"done\n")


def test_a_closed_stream_is_nobody_elses() -> None:
    """The next file that is opened must not become standard output."""
    program = (
        "import os, sys\n"
        "from paxkv.cli.standard_streams import prepare_streams\n"
        "prepare_streams()\n"
        "sys.exit(os.open('/dev/null', os.O_RDONLY))"
    )
    finished = subprocess.run(
        f'"{sys.executable}" -c "{program}" <&- >&- 2>&-',
        shell=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert finished.returncode > 2
