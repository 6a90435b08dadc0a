"""The host-time benchmark runs; its figures are for quiet machines, not for tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "host_time.py"


def test_every_request_advances_in_every_step(tmp_path):
    out = tmp_path / "out.json"
    # More prompts than one step takes in, so that requests start at different steps.
    flags = "--running 20 --steps 6 --kinds greedy penalised --json"
    command = [sys.executable, str(SCRIPT), *flags.split(), str(out)]
    subprocess.run(command, check=True, timeout=120)
    results = json.loads(out.read_text())["results"]
    assert [(r["running"], r["kind"]) for r in results] == [(20, "greedy"), (20, "penalised")]
    for result in results:
        parts = result["mean_seconds_by_part"]
        assert all(seconds > 0 for seconds in parts.values())
        assert abs(sum(parts.values()) - result["mean_seconds"]) < 1e-9
