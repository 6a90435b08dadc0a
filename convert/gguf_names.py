"""Hugging Face's name for each GGUF tensor."""

from __future__ import annotations

import re

from paxkv.models.families.family import Family

_OUTSIDE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
# By llama.cpp's name, what the decoder calls it.
_IN_LAYER = {
    "attn_norm": "attn_norm",
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "attn_output": "o",
    "post_attention_norm": "attn_post_norm",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
    "post_ffw_norm": "mlp_post_norm",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def canonical_name(name: str, family: Family) -> str:
    """The Hugging Face name, or `name` itself if the model has no such tensor."""
    stem, _, kind = name.rpartition(".")
    if stem in _OUTSIDE:
        return f"{_OUTSIDE[stem]}.{kind}"
    block = _BLOCK.fullmatch(name)
    tensor = family.layer_names.get(_IN_LAYER.get(block[2], "")) if block else None
    if block is None or tensor is None:
        return name
    return f"model.layers.{block[1]}.{tensor}.{block[3]}"
