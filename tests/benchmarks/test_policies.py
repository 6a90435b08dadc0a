"""The scheduling options on simulated arrivals: each helps where it should, and only there."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.studies.__main__ import main
from benchmarks.studies.paging.clock import Clock
from benchmarks.studies.paging.trace import SHAREGPT
from benchmarks.studies.policies import (
    BASE,
    SHARED,
    Arrival,
    backlog,
    long_among_short,
    of_one_length,
    replay,
    urgent_stream,
)

REQUESTS = 80


def test_times_are_those_worked_out_by_hand() -> None:
    """A step of one second each: the second request comes during the first step."""
    second = Clock(
        weights_bytes=1, kv_bytes_per_token=0, bandwidth=1, flops_per_token=0, flops_per_second=1
    )
    arrivals = [Arrival("a", 0.0, 10, 3), Arrival("b", 0.5, 10, 1), Arrival("b", 9.0, 1, 2)]
    figures = replay(arrivals, BASE, clock=second)
    assert figures.first["a"] == (1.0, 1.0)
    assert figures.end["a"][0] == 3.0
    assert figures.first["b"][0] == pytest.approx((1.5 + 1.0) / 2)
    assert figures.end["b"][0] == pytest.approx((1.5 + 2.0) / 2)
    assert figures.requests_per_second == pytest.approx(3 / 11)


def test_shared_steps_help_short_prompts_behind_long_ones() -> None:
    arrivals = long_among_short(REQUESTS)
    alone, shared = replay(arrivals, BASE), replay(arrivals, SHARED)
    assert shared.first["short"][1] < 0.5 * alone.first["short"][1]
    assert shared.first["long"][0] < 1.5 * alone.first["long"][0]


def test_grouping_helps_where_lengths_differ_and_are_known() -> None:
    known, unknown = (backlog(SHAREGPT, REQUESTS * 2, known=known) for known in (True, False))
    grouped = replace(BASE, length_aware=True)
    before, after = replay(known, BASE), replay(known, grouped)
    assert after.end["short"][0] < 0.8 * before.end["short"][0]
    assert replay(unknown, grouped) == replay(unknown, BASE)
    alike = of_one_length(REQUESTS)
    assert replay(alike, grouped) == replay(alike, BASE)


def test_ageing_bounds_the_wait_of_those_without_priority() -> None:
    arrivals = urgent_stream(REQUESTS * 2)
    alone, ageing = replay(arrivals, BASE), replay(arrivals, replace(BASE, priority_aging_steps=50))
    assert ageing.first["patient"][1] < 0.8 * alone.first["patient"][1]


def test_the_command_prints_and_writes(tmp_path, capsys) -> None:
    out, markdown = tmp_path / "out.json", tmp_path / "out.md"
    flags = f"--num-requests 20 --json {out} --markdown {markdown}"
    assert main(["policies", *flags.split()]) == 0
    scenarios = json.loads(out.read_text())["scenarios"]
    assert markdown.read_text().count("\n### ") == len(scenarios) == 7
    assert all(len(runs) >= 2 for runs in scenarios.values())
    assert "A backlog of one length" in capsys.readouterr().out
    assert main(["policies", "--num-requests", "3"]) == 2
    assert "--num-requests is 3, must be at least 20" in capsys.readouterr().err
