"""`paxkv bench throughput` from the command line to the report, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_llama import write_folder

from paxkv.cli.main import main

REQUESTS = [(5, 9), (2, 4), (11, 3), (7, 12)]


@pytest.fixture(scope="module")
def arguments(tmp_path_factory):
    """Command line of a run with a small engine."""
    folder = tmp_path_factory.mktemp("bench")
    workload = folder / "work.jsonl"
    workload.write_text(
        "\n".join(
            json.dumps(
                {
                    "prompt_token_ids": list(range(3, 3 + length)),
                    "max_tokens": max_tokens,
                    "temperature": 0.0,
                    "ignore_eos": True,
                }
            )
            for length, max_tokens in REQUESTS
        )
    )
    # One bucket per program: the fewest to compile.
    engine = (
        "--deterministic --max-num-seqs 4 --max-num-batched-tokens 16 --kv-cache-memory-bytes 1M"
    )
    return [
        "bench",
        "throughput",
        "--model",
        str(write_folder(folder)),
        "--workload",
        str(workload),
        "--json",
        str(folder / "out.json"),
        *engine.split(),
    ]


def report_of(arguments):
    return json.loads(Path(arguments[arguments.index("--json") + 1]).read_text())


def test_every_figure_is_measured(arguments, capsys):
    assert main([*arguments, "--runs", "2"]) == 0
    table = capsys.readouterr().out
    report = report_of(arguments)
    figures = report["engines"]["paxkv"]
    assert figures["num_requests"] == len(REQUESTS)
    assert figures["num_output_tokens"] == sum(max_tokens for _, max_tokens in REQUESTS)
    assert figures["num_prompt_tokens"] == sum(length for length, _ in REQUESTS)
    assert len(figures["elapsed"]) == 2
    low, high = sorted(figures["elapsed"])
    assert low <= figures["num_output_tokens"] / figures["output_tokens_per_second"] <= high
    assert figures["peak_rss_bytes"] > 2**26
    assert 0 < figures["compile_seconds"] < figures["startup_seconds"]
    assert 0 < figures["host_seconds_per_step"] < min(figures["elapsed"])
    stream = figures["single_stream"]
    assert 0 < stream["time_per_output_token"] < figures["startup_seconds"]
    assert stream["time_to_first_token"] > 0
    assert report["ratios"] == {}
    for label in ("requests/s", "output tokens/s", "total tokens/s", "peak RSS", "host time"):
        assert label in table


def test_an_engine_that_refuses_is_one_sentence(arguments, capfd):
    """In the command's own words, though another process found it."""
    assert main([*arguments, "--block-size", "0"]) == 2
    said, error = capfd.readouterr().err.splitlines()
    assert said == "running paxkv …"
    assert error.startswith("paxkv bench: paxkv: --block-size=0 must ")


def test_a_workload_that_is_not_there_is_refused_before_any_engine(arguments, capfd):
    assert main([*arguments, "--workload", "nothing.jsonl"]) == 2
    error = capfd.readouterr().err
    assert error == "paxkv bench: workload file nothing.jsonl does not exist\n"


@pytest.mark.parity
def test_three_engines_give_the_same_tokens(arguments, capsys):
    assert main([*arguments, "--compare", "hf"]) == 0
    report = report_of(arguments)
    peers = {"hf_generate", "hf_continuous"}
    assert set(report["ratios"]) == peers
    assert report["identical_outputs"] == dict.fromkeys(peers, [len(REQUESTS)] * 2)
    assert set(report["time_per_token_ratios"]) == {"hf_generate"}
    for peer in peers:
        ratio = report["engines"]["paxkv"]["output_tokens_per_second"]
        ratio /= report["engines"][peer]["output_tokens_per_second"]
        assert report["ratios"][peer] == pytest.approx(ratio)
    assert "throughput over hf_generate" in capsys.readouterr().out
