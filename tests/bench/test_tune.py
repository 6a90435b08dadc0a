"""`paxkv tune`: which setting is chosen, and a whole search with real servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paxkv.bench.tune import (
    Candidate,
    Target,
    Trial,
    best,
    candidates,
    closest,
    search,
    trial_table,
)
from paxkv.cli.main import main
from tests.bench.tiny_llama import write_folder
from tests.text.small_tokenizers import byte_level


def report(throughput: float, ttft: float, tpot: float, failed: int = 0) -> dict[str, Any]:
    return {
        "output_throughput": throughput,
        "p90_ttft_ms": ttft,
        "p90_tpot_ms": tpot,
        "failed": failed,
    }


A, B, C, D = (Candidate(n, 512, 16) for n in (1, 2, 4, 8))
TARGET = Target({"ttft": 100.0, "tpot": 20.0}, 90)


def test_combinations_the_engine_refuses_are_left_out() -> None:
    found = candidates([16, 1024], [512, 2048], [8])
    assert found == [Candidate(16, 512, 8), Candidate(16, 2048, 8), Candidate(1024, 2048, 8)]
    with pytest.raises(ValueError, match="max_num_batched_tokens"):
        candidates([64], [32], [16])
    with pytest.raises(ValueError, match="block_size"):
        candidates([64], [64], [0])


def test_the_most_tokens_within_the_target_win() -> None:
    trials = [
        Trial(A, report(100, 50, 10)),
        Trial(B, report(200, 99, 20)),
        Trial(C, report(300, 101, 10)),
        Trial(D, report(400, 50, 10, failed=1)),
    ]
    chosen = best(trials, TARGET)
    assert chosen is not None
    assert chosen.candidate == B
    verdicts = [row[-1] for row in trial_table(trials, TARGET).rows]
    assert verdicts == ["met", "met", "missed", "missed"]


def test_without_one_the_closest_is_told() -> None:
    trials = [
        Trial(A, report(100, 150, 10)),
        Trial(B, report(900, 50, 26)),
        Trial(C, report(300, 10, 10, failed=2)),
        Trial(D, None, "no memory"),
    ]
    assert best(trials, TARGET) is None
    near = closest(trials, TARGET)
    assert near is not None
    assert near.candidate == B
    assert closest([Trial(D, None, "x")], TARGET) is None


def test_one_that_does_not_start_stops_nothing() -> None:
    def measure(candidate: Candidate) -> dict[str, Any]:
        if candidate == A:
            raise ValueError("no memory")
        return report(1, 1, 1)

    trials = search([A, B], measure)
    assert [(trial.error, trial.report is None) for trial in trials] == [
        ("no memory", True),
        ("", False),
    ]
    assert trial_table(trials, TARGET).rows[0][-1] == "no start"


def test_a_search_with_real_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two settings, one of which cannot start."""
    folder = write_folder(tmp_path)
    byte_level().save(str(folder / "tokenizer.json"))
    out = tmp_path / "tune.json"
    flags = (
        f"tune --model {folder} --target e2el:600000 --max-num-seqs 4 --max-num-batched-tokens 64 "
        f"--block-size 8 1048576 --num-prompts 6 --input-len 8 --output-len 4 --vocab-size 60 "
        f"--ignore-eos --max-concurrency 2 --json {out}"
    ).split()
    code = main([*flags, "--serve-flags=--num-gpu-blocks-override 64 --enforce-eager"])
    text, errors = capsys.readouterr()
    assert code == 0, errors
    last = text.strip().splitlines()[-1]
    assert last == (
        f"paxkv serve --model {folder} --num-gpu-blocks-override 64 --enforce-eager "
        "--max-num-seqs 4 --max-num-batched-tokens 64 --block-size 8"
    )
    good, bad = json.loads(out.read_text())
    assert good["report"]["total_output_tokens"] == 24
    assert good["report"]["peak_memory_bytes"] > 2**20
    assert bad["report"] is None
    assert "--block-size" in bad["error"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--target itl:3", "itl"),
        ("--target ttft:3 --percentile 0", "percentile"),
        ("--target ttft:3 --max-num-seqs 0", "--max-num-seqs"),
    ],
)
def test_what_cannot_be_is_said(capsys: pytest.CaptureFixture[str], flags: str, words: str) -> None:
    assert main(["tune", "--model", "m", *flags.split()]) == 2
    assert words in capsys.readouterr().err
