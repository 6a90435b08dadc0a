"""Tiny random checkpoints of every family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from convert.hf_config import hf_config
from paxkv.models.weights import describe, walk

FULL, SLIDING = "full_attention", "sliding_attention"
COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GEMMA: dict[str, Any] = COMMON | {
    "head_dim": 16,
    "sliding_window": 7,
    "query_pre_attn_scalar": 24,
    "tie_word_embeddings": True,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": COMMON | {"model_type": "llama"},
    "mistral": COMMON
    | {"model_type": "mistral", "sliding_window": 5, "layer_types": [SLIDING, FULL] * 2},
    "qwen2": COMMON | {"model_type": "qwen2"},
    "qwen2 sliding": COMMON
    | {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 6,
        "max_window_layers": 1,
    },
    "qwen3": COMMON | {"model_type": "qwen3", "head_dim": 16},
    "gemma2": GEMMA
    | {
        "model_type": "gemma2",
        "attn_logit_softcapping": 1.5,
        "final_logit_softcapping": 20.0,
    },
    "gemma3": GEMMA
    | {
        "model_type": "gemma3_text",
        "layer_types": [SLIDING, SLIDING, FULL, SLIDING],
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": 50000.0},
            SLIDING: {"rope_type": "default", "rope_theta": 100.0},
        },
        "final_logit_softcapping": 9.0,
    },
}


def weights(config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 tensors by Hugging Face name; norms vary by a third."""
    random = np.random.default_rng(seed)
    found = {}
    model = hf_config(config, Path("config.json"))
    for path, spec in walk(describe(model)):
        for index, name in enumerate(spec.sources):
            values = 0.3 * random.standard_normal(spec.source_shape(index))
            is_norm = "norm" in str(path[-1])
            centre = 1.0 if is_norm and not model.norm_unit_offset else 0.0
            found[name] = (values + centre).astype(np.float32)
    return found


def write(folder: Path, name: str) -> Path:
    """A Hugging Face directory."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODELS[name]), encoding="utf-8")
    save_file(weights(MODELS[name]), folder / "model.safetensors")
    return folder
