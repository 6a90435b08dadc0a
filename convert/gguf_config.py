"""A `ModelConfig` from GGUF metadata."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from convert.hf_config import eos_ids
from paxkv.models.config import ModelConfig, RopeScaling

_END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")


def _rope_scaling(get: Any, context: int, freq_factors: np.ndarray | None) -> RopeScaling | None:
    kind = get("rope.scaling.type", "none")
    factor = get("rope.scaling.factor", 0.0)
    if kind == "none" and get("rope.scale_linear", 0.0):
        kind, factor = "linear", get("rope.scale_linear")
    factors = None
    if freq_factors is not None and not np.all(freq_factors == 1):
        factors = tuple(float(f) for f in freq_factors)
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return RopeScaling("per_frequency", freq_factors=factors) if factors else None
    original = get("rope.scaling.original_context_length")
    if kind == "linear":
        return RopeScaling("linear", factor, original, freq_factors=factors)
    if kind != "yarn":
        raise ValueError(
            f"rope_scaling: unknown rope_type {kind!r}; GGUF files may have none, linear, yarn"
        )
    # llama.cpp multiplies attn_factor by the factor of the YaRN paper, Hugging Face replaces it
    attention = get("rope.scaling.attn_factor", 1.0)
    return RopeScaling(
        "yarn",
        factor,
        original or context,
        attention_factor=None if attention == 1 else attention * (0.1 * math.log(factor) + 1),
        beta_fast=get("rope.scaling.yarn_beta_fast"),
        beta_slow=get("rope.scaling.yarn_beta_slow"),
        freq_factors=factors,
    )


def gguf_config(
    path: Path,
    metadata: dict[str, Any],
    shapes: dict[str, tuple[int, ...]],
    freq_factors: np.ndarray | None,
) -> ModelConfig:
    """Configuration of the model in the file at `path`.

    shapes: by canonical tensor name; they say whether the head is tied and which biases exist.
    freq_factors: `rope_freqs.weight` [head_dim / 2]. The end tokens are those of the metadata and
    of a generation_config.json next to the file.
    """
    architecture = metadata["general.architecture"]

    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"{architecture}.{key}", default)

    def need(key: str) -> Any:
        value = get(key)
        if value is None:
            raise ValueError(f"{path}: metadata key {architecture}.{key} is missing")
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise ValueError(
                    f"{path}: {architecture}.{key} differs between layers, which is not supported"
                )
            return value[0]
        return value

    if get("expert_count", 0):
        raise ValueError(f"{path}: mixture-of-experts models are not supported")
    if "model.embed_tokens.weight" not in shapes:
        raise ValueError(f"{path}: missing tensor token_embd.weight")
    num_heads = need("attention.head_count")
    num_kv_heads = (
        num_heads if get("attention.head_count_kv") is None else need("attention.head_count_kv")
    )
    head_dim = get("attention.key_length") or need("embedding_length") // num_heads
    if get("attention.value_length", head_dim) != head_dim:
        raise ValueError(f"{path}: keys and values of different lengths are not supported")
    if get("rope.dimension_count", head_dim) != head_dim:
        raise ValueError(
            f"{path}: rotary embedding over {get('rope.dimension_count')} of {head_dim} dimensions "
            "is not supported"
        )
    context = need("context_length")
    ends = [metadata.get(f"tokenizer.ggml.{key}") for key in _END_TOKENS]
    beside = eos_ids(path.parent / "generation_config.json") or ()
    return ModelConfig(
        architecture=architecture,
        vocab_size=shapes["model.embed_tokens.weight"][0],
        hidden_size=need("embedding_length"),
        intermediate_size=need("feed_forward_length"),
        num_layers=need("block_count"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=need("attention.layer_norm_rms_epsilon"),
        rope_theta=get("rope.freq_base", 10000.0),
        rope_scaling=_rope_scaling(get, context, freq_factors),
        max_position_embeddings=context,
        tie_word_embeddings="lm_head.weight" not in shapes,
        sliding_window=get("attention.sliding_window") or None,
        attention_bias="model.layers.0.self_attn.q_proj.bias" in shapes,
        mlp_bias="model.layers.0.mlp.gate_proj.bias" in shapes,
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=tuple(dict.fromkeys([*(e for e in ends if e is not None), *beside])),
    )
