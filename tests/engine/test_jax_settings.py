"""Settings of JAX that its users have."""

from __future__ import annotations

import jax
import pytest

from paxkv.engine.embedding import PoolingParams
from paxkv.sampling.sampling_params import SamplingParams
from tests.engine.tiny import Tiny, greedy, ids

PROMPTS = [ids(40, salt=k) for k in range(4)]
SAMPLING = [
    greedy(9, logprobs=3, prompt_logprobs=2, logit_bias={5: 1}),
    greedy(9, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.2),
    SamplingParams(seed=1, n=2, max_tokens=9, top_p=0.9, top_k=5, min_p=0.01),
    SamplingParams(use_beam_search=True, n=2, temperature=0, max_tokens=6),
]


def test_types_are_never_promoted_by_themselves() -> None:
    wanted = Tiny().generate(PROMPTS, SAMPLING)
    with jax.numpy_dtype_promotion("strict"):
        tiny = Tiny(num_gpu_blocks_override=40, num_cpu_blocks_override=20)
        found = tiny.generate(PROMPTS, SAMPLING)
        embedding = tiny.input_processor.embedding(PROMPTS[0], PoolingParams(pooling="mean"))
        tiny.engine.add(embedding)
        tiny.run()
    for mine, want in zip(found, wanted, strict=True):
        assert [x.token_ids for x in mine.outputs] == [x.token_ids for x in want.outputs]
    assert embedding.error is None


def test_an_engine_needs_compilation() -> None:
    with jax.disable_jit(), pytest.raises(ValueError, match="jax_disable_jit=True"):
        Tiny()
