"""The transformers side of the comparison, on a small random Llama."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiny_llama import CONFIG, TinyCheckpoint

from paxkv.bench.transformers_engine import static_batches
from paxkv.bench.workload import Workload, WorkloadRequest


def test_static_batches_keep_order_and_size():
    requests = tuple(WorkloadRequest((i,), 1) for i in range(5))
    batches = list(static_batches(Workload("w", requests), 2))
    assert [[r.prompt_token_ids[0] for r in batch] for batch in batches] == [[0, 1], [2, 3], [4]]


def test_a_batch_is_sampled_one_way_and_n_counts():
    kinds = [(0.0, 1), (0.8, 3), (0.8, 3), (0.8, 1)]
    requests = tuple(WorkloadRequest((1,), 1, temperature=t, n=n) for t, n in kinds)
    batches = list(static_batches(Workload("w", requests), 4))
    assert [[(r.temperature, r.n) for r in batch] for batch in batches] == [
        [kinds[0]],
        [kinds[1]],
        [kinds[2]],
        [kinds[3]],
    ]


REQUESTS = tuple(
    WorkloadRequest(tuple(range(3, 3 + length)), max_tokens, ignore_eos=True)
    for length, max_tokens in ((5, 9), (2, 4), (11, 1), (7, 12))
)


@pytest.fixture(scope="module")
def checkpoint():
    return TinyCheckpoint()


def greedy(model, request):
    """The oracle: one row, no cache, no padding."""
    import torch

    ids = list(request.prompt_token_ids)
    with torch.inference_mode():
        for _ in range(request.max_tokens):
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(request.prompt_token_ids) :]


@pytest.mark.parity
def test_both_modes_give_each_request_its_own_greedy_tokens(checkpoint):
    from paxkv.bench.transformers_engine import measure_continuous, measure_generate
    from paxkv.bench.transformers_model import build_transformers_model

    model = build_transformers_model(checkpoint)
    expected = [[greedy(model, request)] for request in REQUESTS]
    workload = Workload("w", REQUESTS)
    static = measure_generate(checkpoint, workload, 2, 3, 0.0)
    assert static.outputs == expected
    assert static.num_output_tokens == 9 + 4 + 1 + 12
    assert static.details["batches"] == 2
    assert static.single_stream.time_per_output_token > 0
    assert len(static.elapsed) == 2
    continuous = measure_continuous(checkpoint, workload, 1, 0.0)
    assert continuous.outputs == expected


@pytest.mark.parity
def test_end_of_sequence_ends_a_row_unless_ignored(checkpoint):
    from paxkv.bench.transformers_engine import measure_continuous, measure_generate
    from paxkv.bench.transformers_model import build_transformers_model

    free = greedy(build_transformers_model(checkpoint), REQUESTS[3])
    # Name a token the model really makes, not at the first place, as end of sequence.
    end = next(token for token in free if token != free[0])
    checkpoint = TinyCheckpoint(replace(CONFIG, eos_token_ids=(end,)))
    stopping = WorkloadRequest(REQUESTS[3].prompt_token_ids, 12, ignore_eos=False)
    workload = Workload("w", (stopping,))
    cut = [[free[: free.index(end) + 1]]]
    assert measure_generate(checkpoint, workload, 1, 4, 0.0).outputs == cut
    assert measure_continuous(checkpoint, workload, 1, 0.0).outputs == cut
    ignoring = Workload("w", (REQUESTS[3],))
    assert measure_generate(checkpoint, ignoring, 1, 4, 0.0).outputs == [[free]]
    assert measure_continuous(checkpoint, ignoring, 1, 0.0).outputs == [[free]]


@pytest.mark.parity
def test_several_sequences_of_one_prompt(checkpoint):
    from paxkv.bench.transformers_engine import measure_continuous, measure_generate

    requests = tuple(
        WorkloadRequest((3, 4, 5 + i), 6, temperature=0.8, n=4, seed=1, ignore_eos=True)
        for i in range(2)
    )
    workload = Workload("w", requests)
    for measured in (
        measure_generate(checkpoint, workload, 1, 64, 0.0),
        measure_continuous(checkpoint, workload, 1, 0.0),
    ):
        assert [len(sequences) for sequences in measured.outputs] == [4, 4]
        assert all(len(tokens) == 6 for sequences in measured.outputs for tokens in sequences)
        assert len({tuple(tokens) for tokens in measured.outputs[0]}) > 1
