"""Llama, and Mistral: the same decoder with a sliding window."""

from __future__ import annotations

from paxkv.models.families.family import FULL, SLIDING, Family, Fields, window_or

LLAMA = Family(
    name="llama",
    architectures=("LlamaForCausalLM", "LLaMAForCausalLM", "LlamaModel"),
    defaults={"max_position_embeddings": 2048},
    # transformers forgets keys beyond the window while decoding, but masks none in a prompt
    slides=False,
    gguf="llama",
    gguf_pairs=True,
)


def _mistral_layers(fields: Fields, num_layers: int) -> tuple[int | None, list[str]]:
    window = window_or(fields, 4096)
    return window, [FULL if window is None else SLIDING] * num_layers


MISTRAL = Family(
    name="mistral",
    architectures=("MistralForCausalLM", "MistralModel", "MinistralForCausalLM"),
    defaults={"max_position_embeddings": 131072, "num_key_value_heads": 8},
    # vLLM obeys them all the same
    absent={"attention_bias": (None, False, 0), "mlp_bias": (None, False, 0)},
    layers=_mistral_layers,
)
