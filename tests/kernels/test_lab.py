"""The lab's command line: a kernel from a file gets a verdict."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from pallas_kernels import ragged_paged_attention
from pallas_kernels.lab import triton_example
from pallas_kernels.lab.__main__ import main
from pallas_kernels.lab.bench import Step, jax_own
from pallas_kernels.lab.picture import STEPS, floors
from pallas_kernels.roofline import CHIPS

EXAMPLE = f"{triton_example.__file__}:attention"
CASE = ["--only", "head 64"]


def test_the_example_passes_and_declines_what_it_does_not_know(capsys):
    assert main(["verify", "--kernel", EXAMPLE, *CASE]) == 0
    assert "1 passed, 0 declined, 0 failed" in capsys.readouterr().out
    assert main(["verify", "--kernel", EXAMPLE, "--only", "window"]) == 1
    told = capsys.readouterr().out
    assert "the example knows no windows" in told
    assert "0 passed, 3 declined" in told


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


def test_the_roofline_has_a_point_for_each_step():
    """Below its roof, and decoding left of the ridge."""
    chip = CHIPS["H200"]
    found = floors(chip)
    assert [point.name for point in found] == list(STEPS)
    for point in found:
        roof = min(chip.peak, chip.bandwidth * point.intensity)
        assert roof / 50 < point.rate < roof
        assert (point.intensity < chip.peak / chip.bandwidth) == ("decode" in point.name)


def test_the_roofline_is_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit, match="pip install matplotlib"):
        main(["roofline", "--plot", str(tmp_path / "a.svg")])
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    with pytest.raises(SystemExit, match="arch='h300' is not one of"):
        main(["roofline", "--plot", str(tmp_path / "a.svg"), "--arch", "h300"])
    assert main(["bench", "--plot", str(tmp_path / "b.svg"), "--arch", "a100", *SMALL]) == 0
    assert "| xla |" in capsys.readouterr().out
    text = (tmp_path / "b.svg").read_text(encoding="utf-8")
    assert "<!-- A100 -->" in text
    assert "<!-- this step -->" in text
    assert "<!-- xla -->" in text


SMALL = "--batch 2 --context 40 --heads 4 --kv-heads 2 --head-dim 32 --dtype float32".split()


def test_a_kernel_is_timed_beside_the_back_ends_and_jaxs_own(capsys):
    assert main(["bench", "--kernel", EXAMPLE, *SMALL]) == 0
    told = capsys.readouterr().out
    rows = {line.split("|")[1].strip(): line for line in told.splitlines() if line.startswith("|")}
    assert {EXAMPLE, "triton", "xla", "jax's paged_attention"} <= set(rows)
    for name in (EXAMPLE, "triton", "xla"):
        assert float(rows[name].split("|")[2]) > 0
    assert "2 × 40 tokens, decode, 4 heads over 2 of 32" in told
    assert "triton: interpreted on the CPU: its time says nothing" in told
    assert "xla: interpreted" not in told
    assert f"timed by wall clock: {EXAMPLE}, triton, xla" in told


def test_what_does_not_take_a_step_says_why(tmp_path: Path, capsys):
    kernel = tmp_path / "mine.py"
    kernel.write_text(
        "def f(**arrays):\n    raise NotImplementedError('not today')\n", encoding="utf-8"
    )
    assert main(["bench", "--kernel", f"{kernel}:f", *SMALL, "--new", "3"]) == 0
    told = capsys.readouterr().out
    assert f"{kernel}:f: not today" in told
    assert "jax's paged_attention: decodes only" in told
    for wrong, message in (
        (["--new", "41"], "new=41 must be at most context=40"),
        (["--heads", "3"], "heads=3 must be a multiple of kv_heads=2"),
        (["--batch", "0"], "batch=0 must be at least 1"),
        (["--arch", "z80"], "arch='z80' is not one of"),
    ):
        with pytest.raises(SystemExit, match=message):
            main(["bench", *SMALL, *wrong])


def test_jaxs_own_kernel_gets_the_same_problem():
    """Else a comparison of times would be of two different things."""
    step = Step(batch=2, context=48, heads=4, kv_heads=2, head_dim=32, dtype="float32")
    given = step.arrays()
    own, turned = jax_own(step, [given])
    want = ragged_paged_attention(**given, backend="xla")
    np.testing.assert_allclose(own(**turned[0]), want, rtol=1e-4, atol=1e-5)


def test_a_kernel_is_lowered_for_a_chip_that_is_not_there(tmp_path: Path, capsys):
    assert main(["compile", "--kernel", EXAMPLE, "--arch", "a100", *SMALL]) == 0
    told = capsys.readouterr().out
    assert "lowered for a100 by jax" in told
    assert "kernels: 1" in told
    source = Path(triton_example.__file__).read_text(encoding="utf-8")
    right = "jnp.exp(scores - new_top[:, None])"
    assert source.count(right) == 1
    kernel = tmp_path / "kernel.py"
    kernel.write_text(source.replace(right, f"jnp.round({right})"), encoding="utf-8")
    assert main(["compile", "--kernel", f"{kernel}:attention", *SMALL]) == 1
    assert "does not lower for h200: NotImplementedError: Unimplemented" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="arch='t4': compiled can be for h200, h100, a100"):
        main(["compile", "--kernel", EXAMPLE, "--arch", "t4"])
