"""An engine whose device is a stub that answers at once, to time the host alone."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np

from paxkv.engine.build import build_engine
from paxkv.engine.config import EngineConfig
from paxkv.engine.engine import Engine
from paxkv.models.config import ModelConfig
from paxkv.models.weight_store import Weights

PROMPT_TOKENS = 128
TOKEN = 7

# One narrow layer, but a whole vocabulary: its width is what the host's arrays depend on.
MODEL = ModelConfig(
    architecture="llama",
    vocab_size=49152,
    hidden_size=8,
    intermediate_size=8,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
    eos_token_ids=(2,),
)


class StubCompiler:
    """In the place of the engine's compiler: programs that hand back what they were given."""

    names: tuple[str, ...] = ()
    seconds = 0.0

    def get(self, name: str, *_: Any, **__: Any) -> Callable[..., Any]:
        if name.startswith("forward"):
            return lambda params, pages, tables, last, buffer: (None, None, pages, tables)
        if name.startswith("sample"):
            size = int(name[len("sample[") : -1])
            sampled = SimpleNamespace(tokens=np.full(size, TOKEN), bad=np.zeros(size, bool))
            return lambda head, hidden, counts, last, *_: (sampled, counts, last)
        return lambda state, *_: state


def stub_engine(
    running: int,
    steps: int,
    model: ModelConfig = MODEL,
    make_compiler: Callable[[Engine], StubCompiler] = lambda engine: StubCompiler(),
) -> Engine:
    """An engine with room for `running` sequences of `steps` steps, and nothing behind it."""
    length = PROMPT_TOKENS + 2 * steps + 64
    weights = {
        "embed": jnp.zeros((model.vocab_size, model.hidden_size)),
        "layers": [{}],
        "norm": jnp.zeros(model.hidden_size),
    }
    options = EngineConfig(
        enforce_eager=True,
        layers_per_program=1,
        max_model_len=length,
        max_num_seqs=running,
        max_num_batched_tokens=2048,
        num_gpu_blocks_override=running * (length // 16 + 2),
    )
    engine = build_engine(Weights.of(weights), model, options)
    engine.runner.programs.compiler = make_compiler(engine)  # type: ignore[assignment]
    return engine
