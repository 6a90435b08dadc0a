"""`benchmarks.studies block-size` on a tiny model: figures, not speed."""

from __future__ import annotations

import json

import pytest

from benchmarks.studies.__main__ import main
from benchmarks.studies.block_size import (
    BlockSizeRun,
    block_size_table,
    draw_block_sizes,
    synthetic_workload,
)
from paxkv.output_file import OutputFile
from tests.bench.tiny_llama import write_folder


def test_the_figures_of_one_request_are_those_worked_out_by_hand(tmp_path, capsys):
    workload = tmp_path / "work.jsonl"
    workload.write_text(
        '{"prompt_token_ids": [1, 2, 3, 4, 5, 6], "max_tokens": 4, "ignore_eos": true}'
    )
    out = tmp_path / "out.json"
    flags = f"--model {write_folder(tmp_path)} --block-sizes 8 --workload {workload}"
    flags += " --max-num-seqs 4 --max-num-batched-tokens 8 --num-gpu-blocks-override 9"
    flags += f" --enforce-eager --compilation-cache-dir= --json {out}"
    assert main(["block-size", *flags.split()]) == 0
    figures = json.loads(out.read_text())["8"]
    # Four rows of ceil(128 / 8) cells of four bytes.
    assert figures["table_bytes"] == 4 * 16 * 4
    assert (figures["output_tokens"], figures["num_blocks"], figures["peak_blocks"]) == (4, 9, 2)
    # Steps hold 6, 7, 8 and 9 tokens, and at most one page is not full.
    assert 0 < figures["waste"] < 7 / 16
    assert figures["tokens_per_second"] == pytest.approx(4 / figures["seconds"])
    assert figures["tokens_per_cpu_second"] == pytest.approx(4 / figures["cpu_seconds"])
    assert "The engine by block size" in capsys.readouterr().out


def test_table_and_picture(tmp_path):
    pytest.importorskip("matplotlib")
    runs = [
        BlockSizeRun(size, 2.0, 4.0, 100, size / 200, 4096 // size, 64, 10, 0, 1.5)
        for size in (4, 64)
    ]
    assert block_size_table(runs).rows[1][:5] == ("64", "50.0", "25.0", "32.0 %", "64")
    draw_block_sizes(runs, OutputFile(tmp_path / "plot.svg"))
    assert (tmp_path / "plot.svg").read_text().count("<svg") == 1


def test_the_made_up_workload_fits_and_repeats():
    workload = synthetic_workload(50, 64, 100)
    assert workload == synthetic_workload(50, 64, 100)
    totals = [len(r.prompt_token_ids) + r.max_tokens for r in workload.requests]
    assert max(totals) < 64
    assert len(set(totals)) > 20


@pytest.mark.parametrize("sizes", ["0", "16,x", "512", ""])
def test_wrong_sizes_are_named(sizes, capsys):
    assert main(["block-size", "--model", "m", f"--block-sizes={sizes}"]) == 2
    assert "must be integers from 1 to 256" in capsys.readouterr().err
