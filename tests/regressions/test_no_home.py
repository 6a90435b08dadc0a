"""Bug bank: containers whose user has no home directory and no entry in the passwd file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from convert.pull import PullError, default_cache_dir, resolve
from paxkv.cli.main import main
from paxkv.engine.config import EngineConfig
from paxkv.llm import _cache_directory
from paxkv.text.chat import load_template

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A working directory of a process like that."""
    import pwd

    def unknown(uid: int) -> Any:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_everything_can_be_imported() -> None:
    """In a process of its own: caches were looked for at import."""
    program = (
        "import os, pwd, sys; os.environ.pop('HOME', None)\n"
        "def unknown(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = unknown\n"
        "import paxkv.llm, paxkv.engine.build, paxkv.server.app\n"
        "from pallas_kernels import tuned\n"
        "print(tuned.cache_path(), repr(tuned.fingerprint()))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.stdout == "None ''\n", finished.stderr


def test_a_model_by_its_path_needs_none(homeless: Path) -> None:
    (homeless / "model.gguf").touch()
    assert resolve("model.gguf") == Path("model.gguf")
    assert _cache_directory(EngineConfig()) is None
    template = homeless / "~chat"
    template.write_text("text {{ 1 }}")
    assert load_template("~chat") == "text {{ 1 }}"


@pytest.mark.parametrize("name", ["smollm2-135m", "org/name"])
def test_a_model_by_its_name_is_refused_with_what_to_do(
    homeless: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with pytest.raises(PullError, match="set HOME"):
        resolve(name)
    assert main(["pull", name]) == 2
    errors = capsys.readouterr().err
    assert errors == (
        "paxkv pull: there is no home directory: set HOME, or give the path of a model\n"
    )
    assert list(homeless.iterdir()) == []


def test_a_home_that_cannot_be_written_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What HOME=/ gives a user who is not root."""
    (tmp_path / ".cache").write_text("a file")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / ".cache" / "paxkv"
    assert main(["pull", "smollm2-135m"]) == 2
    errors = capsys.readouterr().err
    assert errors == f"paxkv pull: {tmp_path}/.cache/paxkv/smollm2-135m: Not a directory\n"
