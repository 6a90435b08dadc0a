"""`benchmarks.studies paging --real` on a tiny model: exact figures, not speed."""

from __future__ import annotations

import json

import pytest

from benchmarks.studies.__main__ import main
from benchmarks.studies.paging.real import RealJob, real_table, run_real
from tests.bench.tiny_llama import write_folder


def test_pages_hold_more_requests_than_reservations_in_the_same_memory(tmp_path) -> None:
    trace = tmp_path / "trace.jsonl"
    lines = [{"prompt_len": 4 + k % 3, "output_len": 6 + k % 5} for k in range(24)]
    trace.write_text("\n".join(map(json.dumps, lines)))
    job = RealJob(
        str(write_folder(tmp_path)),
        str(trace),
        max_model_len=64,
        block_size=4,
        max_num_seqs=16,
    )
    one_bucket = {"enforce_eager": True, "deterministic": True, "compilation_cache_dir": ""}
    report = run_real(job, one_bucket | {"max_num_batched_tokens": 32})
    engines = report["engines"]
    assert report["pool_slots"] == 256
    assert engines["contiguous"]["most_held"] == 4
    assert engines["paged"]["most_held"] == 16
    assert {run["output_tokens"] for run in engines.values()} == {
        sum(line["output_len"] for line in lines)
    }
    assert report["ratios"]["held"] > 2
    assert report["ratios"]["output_tokens_per_step"] > 2
    assert report["identical_answers"] == [24, 24]
    assert real_table(report).rows[2][:4] == (
        "paged / contiguous",
        f"{report['ratios']['held']:.2f}×",
        f"{engines['paged']['steps'] / engines['contiguous']['steps']:.2f}×",
        f"{report['ratios']['output_tokens_per_step']:.2f}×",
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "--real needs MODEL"),
        ("--model m --pool-slots 9", "--pool-slots is for the simulation"),
        ("--model m --plot out.svg", "--plot draws the simulation"),
    ],
)
def test_a_wrong_option_is_one_sentence(flags, message, capsys) -> None:
    assert main(["paging", "--trace", "synthetic", "--real", *flags.split()]) == 2
    assert message in capsys.readouterr().err
