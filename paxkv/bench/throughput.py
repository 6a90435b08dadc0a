"""`paxkv bench throughput`: the same work on one or more engines, one after the other."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paxkv.bench.measurement import Measurement
from paxkv.bench.report import build_report, print_report
from paxkv.bench.workload import read_workload
from paxkv.output_file import OutputFile

REFUSED = "refused"  # what a worker writes its reason under


@dataclass(frozen=True)
class ThroughputJob:
    """What to run.

    Attributes:
        model: anything `LLM` takes.
        workload: path of a workload file.
        limit: use its first requests only, or None for all.
        runs: runs of the whole workload on each engine, at least 1.
        hf_batch_size: sequences in one static batch of transformers, at least 1.
        engine_arguments: keyword arguments for `LLM`.
    """

    model: str
    workload: Path
    limit: int | None = None
    runs: int = 1
    hf_batch_size: int = 64
    engine_arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("runs", "hf_batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 1")

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "workload": str(self.workload)}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ThroughputJob:
        return cls(**{**fields, "workload": Path(fields["workload"])})


def run_throughput(
    job: ThroughputJob, engines: list[str], file: OutputFile | None = None
) -> dict[str, Any]:
    """Run `job` on each engine, print a table, write the report to `file` if given.

    Returns:
        The report, as `paxkv.bench.report.build_report` describes it.

    Raises:
        ValueError: a bad workload, an engine that is missing or failed.
    """
    workload = read_workload(job.workload, job.limit)
    if len(engines) > 1:
        from paxkv.bench.transformers_model import torch_is_installed

        if not torch_is_installed():
            raise ValueError("--compare hf needs torch: pip install 'paxkv[parity]'")
    measurements = [_run_in_own_process(job, engine) for engine in engines]
    settings = {**job.to_json(), "workload": job.workload.name}
    report = build_report(settings, workload, measurements, machine())
    print_report(report)
    if file is not None:
        file.write_text(json.dumps(report, indent=2) + "\n")
    return report


def _run_in_own_process(job: ThroughputJob, engine: str) -> Measurement:
    """Memory and threads of one engine must not weigh on the next."""
    print(f"running {engine} …", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "measurement.json"
        command = [sys.executable, "-m", "paxkv.bench.worker", engine, str(result)]
        finished = subprocess.run(command, input=json.dumps(job.to_json()), text=True, check=False)
        told = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
        if REFUSED in told:
            raise ValueError(f"{engine}: {told[REFUSED]}")
        if finished.returncode != 0:
            raise ValueError(f"{engine} failed with exit code {finished.returncode}, see above")
        return Measurement.from_json(told)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
