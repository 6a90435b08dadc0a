"""Workload files: what is read, what is refused."""

from __future__ import annotations

import json

import pytest

from paxkv.bench.workload import Workload, WorkloadRequest, read_workload


def write(tmp_path, *lines):
    path = tmp_path / "w.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts))
    return path


def test_fields_and_defaults(tmp_path):
    path = write(
        tmp_path,
        {"id": "a", "prompt_token_ids": [1, 2, 3], "max_tokens": 5},
        "",
        {
            "prompt_token_ids": [4],
            "max_tokens": 7,
            "temperature": 0.8,
            "n": 2,
            "seed": 9,
            "ignore_eos": True,
        },
    )
    workload = read_workload(path)
    assert workload.requests == (
        WorkloadRequest(prompt_token_ids=(1, 2, 3), max_tokens=5),
        WorkloadRequest((4,), 7, temperature=0.8, n=2, seed=9, ignore_eos=True),
    )
    assert (workload.num_prompt_tokens, workload.num_sequences) == (4, 3)


def test_limit_takes_the_first(tmp_path):
    path = write(tmp_path, *({"prompt_token_ids": [i], "max_tokens": 1} for i in range(5)))
    assert [r.prompt_token_ids for r in read_workload(path, 2).requests] == [(0,), (1,)]
    with pytest.raises(ValueError, match="limit is 0, must be at least 1"):
        read_workload(path, 0)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: not JSON"),
        ("[1]", "must be a JSON object, is a list"),
        ({"max_tokens": 1}, "prompt_token_ids must be a non-empty list"),
        ({"prompt_token_ids": [], "max_tokens": 1}, "prompt_token_ids must be a non-empty list"),
        ({"prompt_token_ids": [1, True], "max_tokens": 1}, "prompt_token_ids must be"),
        ({"prompt_token_ids": [-1], "max_tokens": 1}, "prompt_token_ids holds -1"),
        ({"prompt_token_ids": [1], "max_tokens": 0}, "max_tokens is 0, must be an integer"),
        ({"prompt_token_ids": [1], "max_tokens": 1, "n": 1.5}, "n is 1.5"),
        ({"prompt_token_ids": [1], "max_tokens": 1, "seed": "x"}, "seed is 'x'"),
        ({"prompt_token_ids": [1], "max_tokens": 1, "temperature": -1}, "temperature is -1"),
        ({"prompt_token_ids": [1], "max_tokens": 1, "ignore_eos": 1}, "ignore_eos is 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        read_workload(write(tmp_path, line))


def test_a_missing_or_empty_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        read_workload(tmp_path / "nothing.jsonl")
    with pytest.raises(ValueError, match="holds no request"):
        read_workload(write(tmp_path, ""))


def test_the_stored_workload_is_the_one_measured(data_dir):
    workload = read_workload(data_dir / "w1_offline_mixed.jsonl")
    assert isinstance(workload, Workload)
    assert len(workload.requests) == 64
    assert workload.num_prompt_tokens == 5487
    assert sum(request.max_tokens for request in workload.requests) == 5201
