"""A tiny model whose beams end early, and the searches that are compared with transformers'."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any, Literal

import numpy as np

from paxkv.models.config import ModelConfig
from paxkv.models.weights import describe, set_leaf, walk
from paxkv.sampling.sampling_params import SamplingParams
from tests.engine import tiny
from tests.engine.tiny import Tiny, ids

END_IDS = (2, 9, 14, 22, 31, 40, 48, 55, 63, 77, 83, 90, 101, 119)
MAX_TOKENS = 16
CONFIG = replace(tiny.CONFIG, num_heads=4, eos_token_ids=END_IDS)
PROMPTS = [ids(4, salt=9), ids(6, salt=11), ids(21, salt=2)]


@cache
def weights(config: ModelConfig = CONFIG) -> dict[str, Any]:
    """From numpy's frozen generator, so that stored answers stay true."""
    tree = describe(config)
    random = np.random.RandomState(5)
    for path, spec in list(walk(tree)):
        array = 0.4 * random.standard_normal(spec.shape) + (spec.init == "scale")
        set_leaf(tree, path, array.astype(np.float32))
    return tree


def beam_engine(**options: Any) -> Tiny:
    """With one bucket and the same sizes everywhere, so that tests share what is compiled."""
    return Tiny(CONFIG, weights(), **({"deterministic": True, "max_num_seqs": 21} | options))


@dataclass(frozen=True)
class Case:
    prompt: int
    width: int
    length_penalty: float
    early_stopping: bool | Literal["never"]

    @property
    def params(self) -> SamplingParams:
        return beams(
            self.width, length_penalty=self.length_penalty, early_stopping=self.early_stopping
        )


def beams(width: int, max_tokens: int = MAX_TOKENS, **fields: Any) -> SamplingParams:
    return SamplingParams(
        **{"n": width, "use_beam_search": True, "temperature": 0, "max_tokens": max_tokens} | fields
    )


CASES = [
    Case(*values)
    for values in product(
        range(len(PROMPTS)), (1, 2, 4, 8), (0.0, 1.0, 2.0), (False, True, "never")
    )
]


def scores(output: Any, length_penalty: float) -> list[float]:
    """What the beams of a finished request are ranked by."""
    return [o.cumulative_logprob / len(o.token_ids) ** length_penalty for o in output.outputs]
