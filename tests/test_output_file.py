"""OutputFile: what it refuses, and how it writes."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from paxkv.output_file import OutputError, OutputFile


@pytest.mark.parametrize("kind", ["folder", "no folder", "loop"])
def test_what_cannot_be_written_is_refused_before_the_work(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "out"
    if kind == "folder":
        path.mkdir()
    elif kind == "no folder":
        path = tmp_path / "absent" / "out"
    else:
        path.symlink_to(path)
    with pytest.raises(ValueError, match=f"^'{path}' "):
        OutputFile(path)


def test_a_file_keeps_its_mode_and_its_links(tmp_path: Path) -> None:
    path, other = tmp_path / "out", tmp_path / "other"
    path.write_text("old")
    path.chmod(0o640)
    OutputFile(path).write_text("new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o640)
    other.hardlink_to(path)
    OutputFile(path).write_text("newer")
    assert other.read_text() == "newer"


def test_a_mounted_file_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    inode = path.stat().st_ino

    def busy(*names: Any) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "replace", busy)
    OutputFile(path).write_text("new")
    assert (path.read_text(), path.stat().st_ino) == ("new", inode)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    path.write_text("old")

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=f"^{path} cannot be written: No space left"):
        OutputFile(path).write_text("new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
