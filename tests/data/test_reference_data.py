"""The stored answers are what transformers says today."""

from __future__ import annotations

import json

import numpy as np
import pytest

from paxkv.bench.workload import read_workload

NUM_REQUESTS = 3


@pytest.mark.parity
def test_stored_reference_is_reproduced(data_dir):
    import make_penalty_reference
    import make_reference

    from convert import open_checkpoint
    from paxkv.bench.transformers_model import build_transformers_model

    checkpoint = open_checkpoint("smollm2-135m")
    model = build_transformers_model(checkpoint)
    lines = (data_dir / "w1_reference.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    requests = read_workload(data_dir / "w1_offline_mixed.jsonl").requests
    assert [len(record["token_ids"]) for record in records] == [r.max_tokens for r in requests]
    shortest = sorted(range(len(requests)), key=lambda index: requests[index].max_tokens)
    for index in shortest[:NUM_REQUESTS]:
        tokens, gaps = make_reference.greedy_with_gaps(model, requests[index])
        assert tokens == records[index]["token_ids"]
        np.testing.assert_allclose(gaps, records[index]["gaps"], atol=1e-3)

    stored = np.load(data_dir / "scores.npz")
    tokenizer = checkpoint.tokenizer()
    for index, prompt in enumerate(make_reference.SCORED_PROMPTS):
        for name, array in make_reference.scores(model, tokenizer.encode(prompt)).items():
            np.testing.assert_allclose(stored[f"{name}_{index}"], array, atol=1e-3, err_msg=name)

    text = (data_dir / "penalties.json").read_text(encoding="utf-8")
    for stored in json.loads(text)["cases"][::2]:
        found = make_penalty_reference.case(model, stored["prompt"], stored["repetition_penalty"])
        assert found["token_ids"] == stored["token_ids"]
        np.testing.assert_allclose(found["gaps"], stored["gaps"], atol=1e-3)
