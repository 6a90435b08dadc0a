"""The lab's command line: a kernel from a file gets a verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from pallas_kernels.lab import triton_example
from pallas_kernels.lab.__main__ import main

EXAMPLE = f"{triton_example.__file__}:attention"
CASE = ["--only", "head 64"]


def test_the_example_passes_and_declines_what_it_does_not_know(capsys):
    assert main(["verify", "--kernel", EXAMPLE, *CASE]) == 0
    assert "1 passed, 0 declined, 0 failed" in capsys.readouterr().out
    assert main(["verify", "--kernel", EXAMPLE, "--only", "window"]) == 1
    told = capsys.readouterr().out
    assert "the example knows no windows" in told
    assert "0 passed, 2 declined" in told


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("position < seen[token]", "position <= seen[token]"),
        ("acc = acc * keep[:, None] +", "acc = acc +"),
        ("head = key_head * group + row", "head = key_head + row"),
    ],
)
def test_a_wrong_kernel_fails(right, wrong, tmp_path: Path, capsys):
    source = Path(triton_example.__file__).read_text(encoding="utf-8")
    assert source.count(right) == 1
    kernel = tmp_path / "kernel.py"
    kernel.write_text(source.replace(right, wrong), encoding="utf-8")
    assert main(["verify", "--kernel", f"{kernel}:attention", *CASE]) == 1
    assert "1 failed" in capsys.readouterr().out


def test_what_cannot_be_loaded_is_said():
    with pytest.raises(SystemExit, match="there is no file 'nowhere.py'"):
        main(["verify", "--kernel", "nowhere.py:f"])
    with pytest.raises(SystemExit, match="has no function 'g'"):
        main(["verify", "--kernel", f"{triton_example.__file__}:g"])


def test_the_roofline_is_printed(capsys):
    assert main(["roofline"]) == 0
    assert "Decode, µs per layer" in capsys.readouterr().out
