"""Gemma 3 (text): sandwich norms, scaled embeddings, local layers with a rope of their own."""

from __future__ import annotations

from typing import Any

from paxkv.models.config import RopeParameters
from paxkv.models.families.family import (
    FULL,
    LAYER_NAMES,
    SLIDING,
    Family,
    Fields,
    layer_kinds,
    window_or,
)

NAMES = {
    **LAYER_NAMES,
    "attn_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}
DEFAULTS: dict[str, Any] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
OBEYED = {"hidden_activation", "query_pre_attn_scalar", "final_logit_softcapping"}
ACTIVATION = ("hidden_activation", "gelu_pytorch_tanh")
_PERIOD = 6


def every(period: int, num_layers: int) -> list[str]:
    """Layer types in which the last of every `period` layers has full attention."""
    return [SLIDING if (index + 1) % period else FULL for index in range(num_layers)]


def _gemma3_layers(fields: Fields, num_layers: int) -> tuple[int | None, list[str]]:
    period = fields.integer("sliding_window_pattern", _PERIOD)
    return window_or(fields, 4096), every(period, num_layers)


def from_hf(fields: Fields) -> dict[str, Any]:
    return {
        "norm_unit_offset": True,
        "embedding_scale": fields.integer("hidden_size", 2304) ** 0.5,
        "attention_scale": fields.number("query_pre_attn_scalar", 256) ** -0.5,
        "final_logit_softcapping": fields.number("final_logit_softcapping", None),
    }


def from_gguf(fields: Fields, period: int, deepest: int, local_rope: int = 0) -> dict[str, Any]:
    """llama.cpp stores 1 + weight in norms, and knows the largest model by its `deepest` layers."""
    width, num_layers = fields.integer("embedding_length"), fields.integer("block_count")
    window = fields.integer("attention.sliding_window", 0, least=0) or None
    per_head = width / fields.integer("attention.head_count")
    return {
        "hidden_act": ACTIVATION[1],
        "embedding_scale": width**0.5,
        "attention_scale": per_head**-0.5 if num_layers == deepest else None,
        "sliding_window": None,
        "layer_kinds": layer_kinds(every(period, num_layers), window, local_rope),
    }


def _gemma3_from_gguf(fields: Fields) -> dict[str, Any]:
    period = fields.integer("attention.sliding_window_pattern", _PERIOD)
    local = RopeParameters(fields.number("rope.freq_base_swa", 10000.0))
    return {**from_gguf(fields, period, 62, local_rope=1), "other_ropes": (local,)}


GEMMA3 = Family(
    name="gemma3_text",
    architectures=("Gemma3ForCausalLM", "Gemma3TextModel"),
    layer_names=NAMES,
    always={"post_norms": True, "qk_norm": True},
    defaults={
        **DEFAULTS,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "rope_theta": 1e6,
        "rope_local_base_freq": 10000.0,
    },
    activation=ACTIVATION,
    obeyed=frozenset({*OBEYED, "rope_local_base_freq", "sliding_window_pattern"}),
    absent={"mlp_bias": (None, False, 0)},
    layers=_gemma3_layers,
    from_hf=from_hf,
    scaled_length=True,
    gguf="gemma3",
    gguf_obeyed=frozenset({"attention.sliding_window_pattern", "rope.freq_base_swa"}),
    from_gguf=_gemma3_from_gguf,
)
