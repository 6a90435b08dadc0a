"""Bug bank: links, pipes, devices and inputs as the output of a batch are never replaced."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from paxkv.server.batch import run_batch
from tests.server.tiny_server import NAME, lent_model

TEXTS = ("one", "two", "three", "four", "five")


def batch(source: Path, target: Path | str, **options: Any) -> Any:
    return run_batch(lent_model(), source, Path(target), name=NAME, progress=False, **options)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Requests of falling length, so that later ones have ended first."""
    path = tmp_path / "in.jsonl"
    lines = [
        {"prompt": text, "max_tokens": 20 - 4 * place, "temperature": 0.0, "ignore_eos": True}
        for place, text in enumerate(TEXTS)
    ]
    path.write_text("\n\n".join(json.dumps(line) for line in lines))
    return path


def ids(text: str) -> list[str]:
    return [json.loads(line)["custom_id"] for line in text.splitlines()]


IN_ORDER = [f"line-{number}" for number in (1, 3, 5, 7, 9)]


def device(path: Path, minor: int) -> Path:
    """A device of our own: 3 is null, 7 is full."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        path.open("wb").close()
    except PermissionError:
        pytest.skip("devices cannot be made here")
    return path


def test_a_link_is_written_through(source: Path, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    link, real = tmp_path / "link", tmp_path / "far" / "out.jsonl"
    link.symlink_to(real)  # to nothing yet
    for _ in range(2):
        assert batch(source, link).answered == 5
        assert link.is_symlink()
        assert ids(real.read_text()) == IN_ORDER


def test_a_pipe_gets_its_lines_in_order(source: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert batch(source, fifo).answered == 5
        assert fifo.is_fifo()
        assert ids(os.read(reader, 1 << 16).decode()) == IN_ORDER
    finally:
        os.close(reader)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "in.jsonl"]


def test_an_open_file_is_written_to(source: Path) -> None:
    """`-o /dev/stdout`, which is a link to /proc/self/fd/1."""
    reader, writer = os.pipe()
    batch(source, f"/proc/self/fd/{writer}")
    os.close(writer)
    with os.fdopen(reader) as file:
        assert ids(file.read()) == IN_ORDER


def test_a_device_stays_one(source: Path, tmp_path: Path) -> None:
    null = device(tmp_path / "null", 3)
    assert batch(source, null).answered == 5
    assert stat.S_ISCHR(null.stat().st_mode)
    with pytest.raises(ValueError, match="no regular file"):
        batch(source, null, resume=True)


def test_a_full_device_is_an_error_that_names_it(source: Path, tmp_path: Path) -> None:
    full = device(tmp_path / "full", 7)
    with pytest.raises(OSError, match=f"{full} cannot be written: No space left on device"):
        batch(source, full)
    assert stat.S_ISCHR(full.stat().st_mode)


@pytest.mark.parametrize("kind", ["same", "symlink", "hard link", "partial"])
def test_the_input_is_not_overwritten(source: Path, tmp_path: Path, kind: str) -> None:
    content = source.read_text()
    target = tmp_path / "out"
    if kind == "same":
        target = source
    elif kind == "symlink":
        target.symlink_to(source)
    elif kind == "hard link":
        target.hardlink_to(source)
    else:
        source = source.rename(tmp_path / "out.partial")
    with pytest.raises(ValueError, match="would be overwritten"):
        batch(source, target, resume=kind == "partial")
    assert source.read_text() == content


def test_a_neighbor_is_not_overwritten(source: Path, tmp_path: Path) -> None:
    """What is kept until the end has a name that nobody else's file has."""
    source = source.rename(tmp_path / "out.new")
    content = source.read_text()
    batch(source, tmp_path / "out")
    assert source.read_text() == content


def test_a_file_keeps_its_mode(source: Path, tmp_path: Path) -> None:
    """What nobody else may read stays so."""
    path = tmp_path / "out"
    path.write_text("old")
    path.chmod(0o600)
    batch(source, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ids(path.read_text()) == IN_ORDER
