"""`benchmarks.studies prefix` against a naive search for repeated text."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.studies.__main__ import main
from benchmarks.studies.prefix import (
    early_text,
    repeated_first,
    repeated_tokens,
    replay,
    run_prefix,
)
from benchmarks.studies.prompts import read_prompts, synthetic_prompts

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=5)


@given(PROMPTS, st.integers(1, 5))
def test_repeated_tokens_are_those_a_naive_search_finds(prompts, window):
    for index, mark in enumerate(repeated_tokens(prompts, window)):
        own = prompts[index]
        expected = [False] * len(own)
        others = [
            p[s : s + window] for i, p in enumerate(prompts) if i != index for s in range(len(p))
        ]
        for start in range(len(own) - window + 1):
            if own[start : start + window] in others:
                expected[start : start + window] = [True] * window
        assert mark.tolist() == expected


@given(PROMPTS)
def test_moving_text_keeps_all_of_it(prompts):
    moved = repeated_first(prompts, repeated_tokens(prompts, 2))
    assert [sorted(ids) for ids in moved] == [sorted(ids) for ids in prompts]


def test_hits_are_whole_blocks_and_leave_one_token():
    shared = list(range(8))
    assert replay([shared, shared], 4).hit_tokens == 4
    assert replay([[*shared, 50], [*shared, 60]], 4).hit_tokens == 8
    small = replay([[*shared, 50], [70] * 12, [*shared, 60]], 4, num_blocks=3)
    assert (small.hit_tokens, small.evictions > 0) == (0, True)


@pytest.mark.parametrize(
    ("mark", "expected"),
    [("ssss", (4, 0, 0)), ("ooss", (0, 2, 2)), ("soosos", (1, 2, 2)), ("ssoo", (2, 2, 0))],
)
def test_early_text(mark, expected):
    assert early_text(np.array([letter == "s" for letter in mark])) == expected


def test_eight_early_tokens_cost_the_whole_system_prompt():
    report = run_prefix(synthetic_prompts())
    assert report["as given"]["hit_tokens"] == 0
    # 31 of the blocks of 16 are full of the 500 tokens, in 99 prompts.
    assert report["common text first"]["hit_tokens"] == 99 * 496
    assert report["hit_rate_lost"] == pytest.approx(report["common text first"]["hit_rate"])
    assert report["worst"][0] == {"prompt": 0, "start": 0, "length": 8, "behind": 500}


def test_the_command_reads_a_file(tmp_path, capsys):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt_token_ids": [i, *range(20)]}) for i in (5, 6)))
    out = tmp_path / "out.json"
    assert main(["prefix", "--trace", str(path), "--block-size=4", f"--json={out}"]) == 0
    assert "hit rate lost to variable text placed early: 47.6 points" in capsys.readouterr().out
    assert json.loads(out.read_text())["common text first"]["hit_tokens"] == 20


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ('{"prompt": "text"}', "--model names the tokenizer"),
        ('{"prompt_token_ids": []}', "needs prompt_token_ids"),
        ("[1]", "needs prompt_token_ids"),
        ("", "holds no prompt"),
    ],
)
def test_a_bad_file_is_named(tmp_path, line, message):
    path = tmp_path / "prompts.jsonl"
    path.write_text(line)
    with pytest.raises(ValueError, match=message):
        read_prompts(path)
