"""What `benchmarks/sizes.py` counts, and when it complains."""

from __future__ import annotations

import pytest

from benchmarks.sizes import main


@pytest.fixture
def tree(tmp_path):
    for package in ("paxkv/engine", "paxkv/server", "pallas_kernels", "convert"):
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "paxkv/engine/engine.py").write_text("pass\n" * 4_300)
    (tmp_path / "paxkv/server/notes.txt").write_text("text\n" * 9_000)
    return tmp_path


def test_sizes_within_their_targets_pass(tree, capsys):
    assert main(["--check"], tree) == 0
    printed = capsys.readouterr().out
    assert "too large" not in printed
    assert ["paxkv/engine/engine.py", "4,300"] in [line.split() for line in printed.splitlines()]


@pytest.mark.parametrize(
    ("file", "lines", "missed"),
    [
        ("paxkv/engine/one.py", 1, "paxkv/engine/"),
        ("paxkv/server/app.py", 4_401, "paxkv/server/"),
        ("convert/hf.py", 22_701, "all packages"),
    ],
)
def test_one_line_over_a_target_fails(tree, capsys, file, lines, missed):
    (tree / file).write_text("pass\n" * lines)
    assert main(["--check"], tree) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "too large" in line]
    assert line.startswith(missed)
    assert main([], tree) == 0


def test_a_full_folder_of_the_engine_fails(tree):
    (tree / "paxkv/engine/engine.py").unlink()
    for number in range(14):
        (tree / f"paxkv/engine/file_{number}.py").touch()
    assert main(["--check"], tree) == 0
    (tree / "paxkv/engine/file_14.py").touch()
    assert main(["--check"], tree) == 1
