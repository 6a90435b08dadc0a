"""Hugging Face's name for each GGUF tensor of a Llama-type model."""

from __future__ import annotations

import re

_OUTSIDE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def canonical_name(name: str) -> str:
    """The Hugging Face name, or `name` itself if the model has no such tensor."""
    stem, _, kind = name.rpartition(".")
    if stem in _OUTSIDE:
        return f"{_OUTSIDE[stem]}.{kind}"
    block = _BLOCK.fullmatch(name)
    if block and block[2] in _IN_LAYER:
        return f"model.layers.{block[1]}.{_IN_LAYER[block[2]]}.{block[3]}"
    return name
