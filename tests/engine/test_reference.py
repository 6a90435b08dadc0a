"""The real model against transformers' stored float32 greedy run, one factor at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paxkv import LLM, SamplingParams

SHORT = 12
TIE = 1e-3  # DESIGN.md 12

FACTORS: list[dict[str, Any]] = [
    *({"block_size": size} for size in (4, 8, 16, 32, 64)),
    *({"max_num_batched_tokens": budget, "max_num_seqs": 16} for budget in (16, 64, 2048)),
    {"enable_prefix_caching": False},
    {"num_gpu_blocks_override": 90, "block_size": 4, "max_model_len": 356},
]


def load(data_dir: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(request, reference) pairs of the stored workload, shortest first."""
    with (data_dir / "w1_offline_mixed.jsonl").open() as lines:
        requests = [json.loads(line) for line in lines]
    with (data_dir / "w1_reference.jsonl").open() as lines:
        references = {r["id"]: r for r in map(json.loads, lines)}
    pairs = [(request, references[request["id"]]) for request in requests]
    return sorted(pairs, key=lambda pair: len(pair[0]["prompt_token_ids"]) + pair[0]["max_tokens"])


def generate(llm: LLM, requests: list[dict[str, Any]]) -> list[list[int]]:
    prompts = [{"prompt_token_ids": request["prompt_token_ids"]} for request in requests]
    params = [
        SamplingParams(temperature=0, max_tokens=r["max_tokens"], ignore_eos=True, detokenize=False)
        for r in requests
    ]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def assert_equal(found: list[int], reference: dict[str, Any]) -> None:
    want, gaps = reference["token_ids"], reference["gaps"]
    assert len(found) == len(want)
    until = next((at for at, gap in enumerate(gaps) if gap < TIE), len(want))
    assert found[:until] == want[:until], reference["id"]


def test_a_dozen_short_requests(smollm: LLM, data_dir: Path) -> None:
    pairs = [p for p in load(data_dir) if len(p[0]["prompt_token_ids"]) + p[0]["max_tokens"] < 512]
    requests, references = zip(*pairs[:SHORT], strict=True)
    for found, reference in zip(generate(smollm, list(requests)), references, strict=True):
        assert_equal(found, reference)


@pytest.mark.full
@pytest.mark.parametrize("options", FACTORS, ids=str)
def test_whole_workload(options: dict[str, Any], data_dir: Path) -> None:
    requests, references = zip(*load(data_dir), strict=True)
    llm = LLM("smollm2-135m", dtype="float32", **({"max_num_seqs": 16} | options))
    for found, reference in zip(generate(llm, list(requests)), references, strict=True):
        assert_equal(found, reference)
    if "num_gpu_blocks_override" in options:
        assert llm.stats().preemptions >= 20


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_whole_workload_in_another_order(seed: int, data_dir: Path) -> None:
    pairs = load(data_dir)
    shuffled = [pairs[place] for place in np.random.default_rng(seed).permutation(len(pairs))]
    llm = LLM("smollm2-135m", dtype="float32", max_num_seqs=16)
    tokens = generate(llm, [request for request, _ in shuffled])
    for found, (_, reference) in zip(tokens, shuffled, strict=True):
        assert_equal(found, reference)
