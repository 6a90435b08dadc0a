"""transformers' Llama built from a checkpoint's own float32 weights: the peer and the oracle.

Needs torch (the extra `parity`), imported only when a function here is called.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from convert import Checkpoint
    from paxkv.models.config import ModelConfig


def torch_is_installed() -> bool:
    """Whether `import torch` would work, found out without doing it."""
    return find_spec("torch") is not None


def require_torch() -> Any:
    """The module torch.

    Raises:
        ValueError: torch is not installed.
    """
    if not torch_is_installed():
        raise ValueError("comparing with transformers needs torch: pip install 'paxkv[parity]'")
    import torch

    return torch


def transformers_config(config: ModelConfig) -> Any:
    """The `LlamaConfig` (or `MistralConfig`, for a sliding window) that says what `config` says.

    Raises:
        ValueError: another family, or a rope scaling transformers has no name for.
    """
    from transformers import LlamaConfig, MistralConfig

    if config.architecture not in ("llama", "mistral") or config.layer_kinds:
        raise ValueError(
            "comparing with transformers is for llama, and mistral with layers of one kind; this "
            f"is {config.architecture} with {len(set(config.layers))} kinds"
        )

    rope: dict[str, Any] = {"rope_type": "default"}
    if config.rope_scaling is not None:
        rope = {k: v for k, v in asdict(config.rope_scaling).items() if v is not None}
        if "freq_factors" in rope:
            raise ValueError("rope_scaling: freq_factors has no counterpart in transformers")
    fields: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {"rope_theta": config.rope_theta, **rope},
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "hidden_act": config.hidden_act,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "pad_token_id": None,
    }
    if config.sliding_window is not None:
        return MistralConfig(**fields, sliding_window=config.sliding_window)
    return LlamaConfig(**fields, attention_bias=config.qkv_bias, mlp_bias=config.mlp_bias)


def build_transformers_model(checkpoint: Checkpoint, attention: str = "sdpa") -> Any:
    """A float32 causal language model of transformers on the CPU with the checkpoint's weights.

    Args:
        checkpoint: as `convert.open_checkpoint` returns it; quantized tensors are dequantized.
        attention: transformers' name of an attention implementation.

    Raises:
        ValueError: torch is missing, or transformers cannot express the configuration.
        RuntimeError: a tensor is missing, surplus or mis-shaped.
    """
    torch = require_torch()
    from transformers import AutoModelForCausalLM

    config = transformers_config(checkpoint.config)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation=attention, dtype=torch.float32
    )
    state = {
        name: torch.from_numpy(np.array(checkpoint.tensor(name), dtype=np.float32))
        for name in checkpoint.names()
    }
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True, assign=True)
    model.tie_weights()
    # `generate` fills a None from here, so a request that ignores end-of-sequence would end by it.
    model.generation_config.eos_token_id = None
    return model.eval()
