"""A tiny random model behind a whole engine, for tests that need no real text."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np

from paxkv.engine.build import build_engine
from paxkv.engine.config import EngineConfig
from paxkv.engine.engine import Engine
from paxkv.engine.input_processor import InputProcessor
from paxkv.engine.request import Request
from paxkv.models.config import ModelConfig
from paxkv.models.weight_store import Weights
from paxkv.models.weights import init_params
from paxkv.outputs import RequestOutput
from paxkv.sampling.sampling_params import SamplingParams

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=128,
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=8,
    max_position_embeddings=512,
    eos_token_ids=(2,),
)
DEFAULTS: dict[str, Any] = {
    "block_size": 4,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "num_gpu_blocks_override": 200,
    "enforce_eager": True,  # compile only the shapes a test meets
}


@cache
def params(config: ModelConfig = CONFIG) -> dict[str, Any]:
    """Random weights, large enough that the two best logits seldom tie."""
    return init_params(config, jax.random.key(7), scale=0.4)


def ids(length: int, salt: int = 0) -> list[int]:
    """Fixed ids without special ones; another salt differs from position 0."""
    random = np.random.default_rng((length, salt))
    return [3 + salt % 120, *random.integers(3, CONFIG.vocab_size, length).tolist()][:length]


class Tiny:
    """Engine and input_processor of the tiny model, with `LLM.generate`'s loop."""

    def __init__(
        self,
        config: ModelConfig = CONFIG,
        weights: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.config = config
        self.options = EngineConfig(**(DEFAULTS | options))
        self.engine: Engine = build_engine(
            Weights.of(weights or params(config)), config, self.options
        )
        self.input_processor = InputProcessor(self.engine, config, None)

    def request(self, prompt: list[int], sampling: SamplingParams, **kwargs: Any) -> Request:
        return self.input_processor.request(prompt, replace(sampling, detokenize=False), **kwargs)

    def add(self, prompt: list[int], sampling: SamplingParams, **kwargs: Any) -> Request:
        request = self.request(prompt, sampling, **kwargs)
        self.engine.add(request)
        return request

    def run(self, check: bool = True) -> None:
        """Step until nothing is left."""
        steps = 0
        while self.engine.has_work:
            self.engine.step()
            if check:
                self.engine.block_manager.check_invariants()
            steps += 1
            assert steps < 20_000, "the engine makes no progress"

    def generate(
        self, prompts: list[list[int]], sampling: SamplingParams | list[SamplingParams]
    ) -> list[RequestOutput]:
        each = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
        requests = [self.add(prompt, chosen) for prompt, chosen in zip(prompts, each, strict=True)]
        self.run()
        return [request.output() for request in requests]

    def tokens(self, prompt: list[int], sampling: SamplingParams) -> list[int]:
        return self.generate([prompt], sampling)[0].outputs[0].token_ids


def greedy(max_tokens: int, **kwargs: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **kwargs)
