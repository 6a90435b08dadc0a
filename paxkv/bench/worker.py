"""The process of one engine: `python -m paxkv.bench.worker ENGINE RESULT`, the job on stdin."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from paxkv.bench.measurement import Measurement
from paxkv.bench.throughput import REFUSED, ThroughputJob
from paxkv.bench.workload import read_workload


def measure(engine: str, job: ThroughputJob, started: float) -> Measurement:
    """Run `job` on `engine` in this process; `started` is the clock at its start.

    Raises:
        ValueError: an unknown engine, or what the engine refuses.
    """
    workload = read_workload(job.workload, job.limit)
    if engine == "paxkv":
        from paxkv.bench.paxkv_engine import measure_paxkv

        return measure_paxkv(job.model, workload, job.runs, job.engine_arguments, started)
    from convert import open_checkpoint
    from paxkv.bench.transformers_engine import measure_continuous, measure_generate

    checkpoint = open_checkpoint(job.model)
    if engine == "hf_generate":
        return measure_generate(checkpoint, workload, job.runs, job.hf_batch_size, started)
    if engine == "hf_continuous":
        return measure_continuous(checkpoint, workload, job.runs, started)
    raise ValueError(f"engine {engine!r} is unknown")


def main() -> int:
    started = time.perf_counter()
    engine, result = sys.argv[1:]
    try:
        measurement = measure(engine, ThroughputJob.from_json(json.load(sys.stdin)), started)
    except ValueError as error:
        Path(result).write_text(json.dumps({REFUSED: str(error)}), encoding="utf-8")
        return 1
    Path(result).write_text(json.dumps(measurement.to_json()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
