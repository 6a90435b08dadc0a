"""Figures derived from measurements, checked against arithmetic done by hand."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from paxkv.bench.measurement import Measurement, SingleStream, peak_rss_bytes
from paxkv.bench.report import build_report, print_report
from paxkv.bench.throughput import ThroughputJob, machine
from paxkv.bench.workload import Workload, WorkloadRequest

WORKLOAD = Workload(
    "w.jsonl",
    (
        WorkloadRequest((1, 2, 3), 4),
        WorkloadRequest((1,), 2, n=2, temperature=0.5),
    ),
)


def measurement(engine, elapsed, outputs, per_token=None):
    return Measurement(
        engine=engine,
        elapsed=elapsed,
        outputs=outputs,
        num_prompt_tokens=4,
        peak_rss_bytes=2**30,
        startup_seconds=3.0,
        single_stream=per_token and SingleStream(0.5, per_token),
    )


OURS = measurement("paxkv", [2.0, 1.0, 4.0], [[[5, 6, 7, 8]], [[1, 2], [3, 4]]], 0.02)
THEIRS = measurement("hf_generate", [8.0], [[[5, 6, 7, 9]], [[1, 1], [1, 1]]], 0.08)
SHORTER = measurement("hf_continuous", [1.0], [[[5, 6, 7, 8]], [[1], [3]]])


def test_throughput_is_that_of_the_median_run():
    assert OURS.num_output_tokens == 8
    assert OURS.output_tokens_per_second == 4.0
    assert OURS.total_tokens_per_second == 6.0
    assert OURS.requests_per_second == 1.0


def test_ratios_are_ours_over_theirs():
    report = build_report({}, WORKLOAD, [OURS, THEIRS, SHORTER], {})
    assert report["ratios"] == {"hf_generate": 4.0, "hf_continuous": pytest.approx(4 / 6)}
    assert report["time_per_token_ratios"] == {"hf_generate": 0.25}
    assert report["identical_outputs"] == {"hf_generate": [0, 1], "hf_continuous": [1, 1]}
    assert report["workload"]["num_sequences"] == 3
    assert "outputs" not in report["engines"]["paxkv"]
    assert report["engines"]["paxkv"]["output_tokens_per_second"] == 4.0
    json.dumps(report)


def test_the_table_shows_every_figure_and_dashes_for_the_unknown():
    out = io.StringIO()
    report = build_report({}, WORKLOAD, [OURS, THEIRS, SHORTER], {})
    print_report(report, Console(file=out, width=120))
    text = out.getvalue()
    rows = {line.split("│")[1].strip(): line for line in text.splitlines() if "│" in line}
    assert [cell.strip() for cell in rows["output tokens/s"].split("│")[2:5]] == [
        "4.0",
        "1.0",
        "6.0",
    ]
    assert "1.0–4.0 (3 runs)" in rows["seconds per run"]
    per_token = [cell.strip() for cell in rows["single stream: per token, ms"].split("│")[2:5]]
    assert per_token == ["20.0", "80.0", "–"]
    assert "throughput over hf_generate: 4.00×" in text
    assert "single-stream time per token: 0.25×" in text
    assert "same greedy outputs: 1 of 1" in text


def test_single_stream_from_a_clock():
    stream = SingleStream.from_arrivals(10.0, [10.5, 10.6, 10.9])
    assert stream.time_to_first_token == pytest.approx(0.5)
    assert stream.time_per_output_token == pytest.approx(0.2)
    assert SingleStream.from_arrivals(0.0, [1.0]).time_per_output_token is None


def test_a_single_stream_is_measured_several_times() -> None:
    times = iter([(9.0, 0.3), (1.0, 0.1), (2.0, 9.0), (3.0, 0.2), (4.0, 0.4)])
    stream = SingleStream.median_of(lambda: SingleStream(*next(times)))
    assert (stream.time_to_first_token, stream.time_per_output_token) == (3.0, 0.3)
    assert next(times, None) is None
    assert SingleStream.median_of(lambda: SingleStream(1.0, None)).time_per_output_token is None


def test_measurements_and_jobs_survive_json():
    for each in (OURS, SHORTER):
        assert Measurement.from_json(json.loads(json.dumps(each.to_json()))) == each
    job = ThroughputJob("m", Path("w.jsonl"), 3, 2, 8, {"block_size": 16})
    assert ThroughputJob.from_json(json.loads(json.dumps(job.to_json()))) == job


@pytest.mark.parametrize("name", ["runs", "hf_batch_size"])
def test_a_job_without_work_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} is 0, must be at least 1"):
        ThroughputJob("m", Path("w.jsonl"), **{name: 0})


def test_this_process_and_machine_are_seen():
    assert 2**20 < peak_rss_bytes() < 2**40
    assert machine()["cores"] >= 1
