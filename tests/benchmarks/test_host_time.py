"""The host-time benchmarks run; their figures are for quiet machines, not for tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_every_request_advances_in_every_step(tmp_path):
    out = tmp_path / "out.json"
    # More prompts than one step takes in, so that requests start at different steps.
    flags = "--running 20 --steps 6 --kinds greedy penalised --json"
    command = [sys.executable, str(FOLDER / "host_time.py"), *flags.split(), str(out)]
    subprocess.run(command, check=True, timeout=120)
    results = json.loads(out.read_text())["results"]
    assert [(r["running"], r["kind"]) for r in results] == [(20, "greedy"), (20, "penalised")]
    for result in results:
        parts = result["mean_seconds_by_part"]
        assert all(seconds > 0 for seconds in parts.values())
        assert abs(sum(parts.values()) - result["mean_seconds"]) < 1e-9


def test_beams_fork_in_every_round(tmp_path):
    out = tmp_path / "out.json"
    flags = "--running 3 --beams 3 --steps 4 --json"
    command = [sys.executable, str(FOLDER / "fork_time.py"), *flags.split(), str(out)]
    subprocess.run(command, check=True, timeout=120)
    (result,) = json.loads(out.read_text())["results"]
    assert (result["running"], result["beams"]) == (3, 3)
    parts = result["median_seconds_by_part"]
    assert 0 < parts["fork_rows"] <= parts["fork and free"] < parts["everything"]
