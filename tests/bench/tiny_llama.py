"""A two-layer Llama with weights drawn from fixed seeds, in memory or as a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from paxkv.models.config import ModelConfig
from paxkv.models.weights import ArraySpec, describe

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_position_embeddings=128,
    tie_word_embeddings=True,
    eos_token_ids=(0,),
)


class TinyCheckpoint:
    """As `convert.open_checkpoint` would return it."""

    def __init__(self, config: ModelConfig = CONFIG) -> None:
        self.config = config
        self._shapes = {
            name: spec.source_shape(index)
            for spec in _specs(describe(config))
            for index, name in enumerate(spec.sources)
        }

    def names(self) -> list[str]:
        return list(self._shapes)

    def tensor(self, name: str) -> np.ndarray:
        drawn = np.random.default_rng(list(name.encode())).normal(size=self._shapes[name])
        return (1 + 0.1 * drawn if "norm" in name else 0.3 * drawn).astype(np.float32)


def write_folder(folder: Path) -> Path:
    """The same model as `config.json` and `model.safetensors`."""
    checkpoint = TinyCheckpoint()
    config = CONFIG
    fields = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.max_position_embeddings,
        "hidden_act": config.hidden_act,
        "tie_word_embeddings": True,
        "eos_token_id": list(config.eos_token_ids),
    }
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    save_file(
        {name: checkpoint.tensor(name) for name in checkpoint.names()},
        folder / "model.safetensors",
    )
    return folder


def _specs(tree: object) -> list[ArraySpec]:
    if isinstance(tree, ArraySpec):
        return [tree]
    children = tree.values() if isinstance(tree, dict) else tree
    return [spec for child in children for spec in _specs(child)]  # type: ignore[union-attr]
