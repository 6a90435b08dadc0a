"""Qwen2 (biases on queries, keys and values) and Qwen3 (norms of queries and keys)."""

from __future__ import annotations

from paxkv.models.families.family import FULL, SLIDING, Family, Fields, window_or

_DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
}
_NO = (None, False, 0)


def _layers(fields: Fields, num_layers: int) -> tuple[int | None, list[str]]:
    """The last layers slide, from `max_window_layers` on."""
    if not fields.flag("use_sliding_window", False):
        return None, [FULL] * num_layers
    window = window_or(fields, 4096)
    first = fields.integer("max_window_layers", 28, least=0)
    first = num_layers if window is None else min(first, num_layers)
    return window, [FULL] * first + [SLIDING] * (num_layers - first)


QWEN2 = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM", "Qwen2Model"),
    always={"qkv_bias": True},
    defaults=_DEFAULTS,
    obeyed=frozenset({"use_sliding_window", "max_window_layers"}),
    absent={"attention_bias": _NO, "mlp_bias": _NO, "head_dim": (None,)},
    layers=_layers,
    gguf="qwen2",
)
QWEN3 = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM", "Qwen3Model"),
    always={"qk_norm": True},
    defaults={**_DEFAULTS, "head_dim": 128},
    obeyed=frozenset({"use_sliding_window", "max_window_layers"}),
    absent={"mlp_bias": _NO},
    layers=_layers,
    gguf="qwen3",
)
