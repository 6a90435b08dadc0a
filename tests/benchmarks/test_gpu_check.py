"""`python -m benchmarks.gpu_check` tried without a GPU."""

from __future__ import annotations

import json

import pytest

from benchmarks.gpu_check import engine_step, numerics
from benchmarks.gpu_check.__main__ import main
from benchmarks.gpu_check.report import goals, table
from benchmarks.gpu_check.sizes import Sizes


@pytest.mark.full
def test_a_dry_run_measures_every_part(tmp_path, capsys):
    assert main(["--dry-run", "--out", str(tmp_path / "check")]) == 0
    report = json.loads((tmp_path / "check.json").read_text(encoding="utf-8"))
    assert report["failed"] == {}
    assert {row["verdict"] for row in report["numerics"]} == {"right"}
    assert len(report["numerics"]) >= 7
    first, huge = report["decode"]
    assert first["seconds"] > 0
    assert set(first["implementations"]) >= {"triton", "xla", "jax's paged_attention"}
    assert huge["skipped"] == "above 32 GiB"
    assert report["prefill"][0]["share_of_peak"] > 0
    engine = report["engine"]
    assert engine["attention"].startswith("triton")
    assert all(engine[name] > 0 for name in ("step", "forward", "sample", "host"))
    assert report["launches"][0]["seconds_per_attention"] > 0
    text = (tmp_path / "check.md").read_text(encoding="utf-8")
    assert text == capsys.readouterr().out
    assert "dry run: figures mean nothing" in text


def test_the_budgets_end_within_eight_minutes():
    assert sum(Sizes().budget.values()) <= 480


def test_without_a_gpu_it_is_refused(tmp_path, capsys):
    assert main(["--out", str(tmp_path / "check")]) == 2
    assert "there is no GPU here" in capsys.readouterr().err


def test_a_wrong_kernel_and_a_part_that_fails_are_told(tmp_path, monkeypatch, capsys):
    def wrong():
        raise AssertionError("far off")

    check = type("Check", (), {"kernel": "copy", "run": staticmethod(wrong)})
    monkeypatch.setattr(numerics, "checks", lambda *size: [check])

    def broken(*args):
        raise RuntimeError("no such device")

    monkeypatch.setattr(engine_step, "build_engine", broken)
    asked = ["--dry-run", "--out", str(tmp_path / "check"), "--only", "numerics", "engine"]
    assert main(asked) == 1
    text = capsys.readouterr().out
    assert "| wrong: copy D64 page16 | far off |" in text
    assert "| engine: failed | RuntimeError: no such device |" in text


def cell(batch, context, share, own=3e-3):
    found = {"triton": {"seconds": 1e-3}, "jax's paged_attention": {"seconds": own}}
    row = {"batch": batch, "context": context, "seconds": 1e-3, "share_of_copy": share}
    return row | {"implementations": found}


@pytest.mark.parametrize(
    ("rows", "reached"),
    [
        ([cell(64, 8192, 0.95), cell(64, 1024, 0.8)], [True, True, True]),
        ([cell(64, 8192, 0.85), cell(64, 1024, 0.7, own=1.4e-3)], [False, False, False]),
        ([{"batch": 64, "context": 8192, "skipped": "out of time"}], [None, None, None]),
    ],
)
def test_goals_are_compared_with_what_was_measured(rows, reached):
    report = {"dry_run": False, "decode": rows, "seconds": 1.0, "numerics": [{"verdict": "right"}]}
    assert [met for name, met in goals(report) if name.startswith("decode")] == reached
    assert "| every kernel as float64 has it | yes |" in table(report)
