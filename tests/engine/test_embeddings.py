"""Vectors of prompts against a dense float64 decoder, in chunks, beside others, preempted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paxkv import LLM, PoolingParams
from paxkv.engine.embedding import EmbeddingRequest
from tests.engine.dense_reference import hidden_states
from tests.engine.tiny import CONFIG, Tiny, greedy, ids, params

LENGTHS = (1, 2, 5, 17, 40)


def pooled(prompt: list[int], how: PoolingParams) -> np.ndarray:
    hidden = hidden_states(params(), CONFIG, prompt)
    vector = hidden[-1] if how.pooling == "last" else hidden.mean(0)
    return vector / np.linalg.norm(vector) if how.normalize else vector


def embed(tiny: Tiny, prompts: list[list[int]], how: PoolingParams) -> list[EmbeddingRequest]:
    requests = [tiny.input_processor.embedding(prompt, how) for prompt in prompts]
    for request in requests:
        tiny.engine.add(request)
    tiny.run()
    return requests


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("budget", [8, 64])
def test_vectors_equal_the_dense_decoder(budget: int, pooling: Any, normalize: bool) -> None:
    """Also of prompts that come in chunks, down to a last one of one token."""
    tiny = Tiny(max_num_batched_tokens=budget)
    how = PoolingParams(pooling=pooling, normalize=normalize)
    prompts = [ids(length) for length in LENGTHS]
    for prompt, request in zip(prompts, embed(tiny, prompts, how), strict=True):
        output = request.embedding_output()
        np.testing.assert_allclose(output.outputs.embedding, pooled(prompt, how), atol=2e-5)
        assert output.finished


def test_a_cached_prefix_serves_the_last_token_and_never_the_mean() -> None:
    tiny, prompt = Tiny(), ids(40)
    for pooling, cached in (("last", 0), ("last", 36), ("mean", 0)):
        (request,) = embed(tiny, [prompt], PoolingParams(pooling=pooling))
        assert request.num_cached_tokens == cached
        np.testing.assert_allclose(request.embedding, pooled(prompt, request.pooling), atol=2e-5)


def test_beside_requests_that_generate_and_crowd_it_out() -> None:
    tiny = Tiny(num_gpu_blocks_override=14, max_num_batched_tokens=16, max_num_seqs=4)
    alone = Tiny().tokens(ids(6, salt=1), greedy(30))
    others = [tiny.add(ids(6, salt=salt), greedy(30)) for salt in (1, 2)]
    how = PoolingParams(pooling="mean")
    requests = [tiny.input_processor.embedding(ids(length), how) for length in LENGTHS]
    for request in requests:
        tiny.engine.add(request)
    tiny.run()
    for length, request in zip(LENGTHS, requests, strict=True):
        np.testing.assert_allclose(request.embedding, pooled(ids(length), how), atol=2e-5)
    assert others[0].output().outputs[0].token_ids == alone
    assert tiny.engine.stats().preemptions > 0


def test_no_token_is_pooled_twice_when_a_prompt_is_computed_again() -> None:
    tiny = Tiny(max_num_batched_tokens=16)
    how = PoolingParams(pooling="mean")
    request = tiny.input_processor.embedding(ids(40), how)
    tiny.engine.add(request)
    tiny.engine.step()
    assert 0 < request.num_pooled < 40
    tiny.engine.scheduler.preempt(request.sequences[0])
    tiny.run()
    assert request.num_pooled == 40
    np.testing.assert_allclose(request.embedding, pooled(ids(40), how), atol=2e-5)


def test_what_fails_has_no_vector() -> None:
    tiny = Tiny()
    tiny.engine.runner.hooks.logits = lambda request_id, child, output: float("nan")
    (request,) = embed(tiny, [ids(5)], PoolingParams())
    with pytest.raises(RuntimeError, match="not finite"):
        request.embedding_output()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pooling": "max"}, 'pooling must be "last" or "mean"'),
        ({"normalize": 1}, "normalize must be True or False"),
    ],
    ids=str,
)
def test_wrong_parameters_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PoolingParams(**arguments)


def test_the_real_model_finds_the_nearer_sentence(smollm: LLM) -> None:
    texts = [
        "A cat sleeps on the sofa.",
        "The kitten naps on the couch.",
        "Bond yields rose today.",
    ]
    found = smollm.embed(texts, PoolingParams(pooling="mean"), use_tqdm=False)
    cat, kitten, bonds = (np.array(output.outputs.embedding) for output in found)
    assert len(cat) == smollm.model_config.hidden_size
    assert cat @ kitten > cat @ bonds
    with pytest.raises(ValueError, match="prompt 1: the prompt is empty"):
        smollm.embed(["a", ""])
    with pytest.raises(ValueError, match="pooling_params must be PoolingParams"):
        smollm.embed("a", {"pooling": "mean"})  # type: ignore[arg-type]
