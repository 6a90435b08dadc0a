"""A `ModelConfig` from GGUF metadata."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from convert.fields import Fields
from convert.gguf_keys import check_keys
from convert.gguf_vocabulary import Vocabulary
from convert.hf_config import eos_ids
from convert.token_ids import known_ids
from paxkv.models.config import ModelConfig, RopeScaling
from paxkv.models.families.registry import gguf_family

_END_TOKENS = tuple(f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom"))
_BOS_TOKEN = "tokenizer.ggml.bos_token_id"

_PER_LAYER = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.sliding_window",
        "feed_forward_length",
        "rope.dimension_count",
    }
)


def _rope_scaling(
    fields: Fields, context: int, freq_factors: np.ndarray | None
) -> RopeScaling | None:
    factor = fields.number("rope.scaling.factor", None, zero=True)
    if factor is None:
        factor = fields.number("rope.scale_linear", 0.0, zero=True)
    # A factor without a type is linear, and one of 0 is none, as in llama.cpp.
    kind = fields.text("rope.scaling.type", "linear")
    factors = None
    if freq_factors is not None and not np.all(freq_factors == 1):
        factors = tuple(float(f) for f in freq_factors)
    # llama.cpp multiplies attn_factor by the factor of the YaRN paper, Hugging Face replaces it
    attention = fields.number("rope.scaling.attn_factor", 1.0)
    if attention != 1 and kind != "yarn":
        raise fields.wrong("rope.scaling.attn_factor", "1 without rope.scaling.type 'yarn'")
    if kind == "none" or (kind in ("linear", "yarn") and factor in (0, 1) and attention == 1):
        return RopeScaling("per_frequency", freq_factors=factors) if factors else None
    original = fields.integer("rope.scaling.original_context_length", None, least=0) or None
    if kind == "linear":
        return RopeScaling("linear", factor, original, freq_factors=factors)
    if kind != "yarn":
        raise fields.wrong("rope.scaling.type", "none, linear or yarn")
    factor = factor or 1.0
    return RopeScaling(
        "yarn",
        factor,
        original or context,
        attention_factor=None if attention == 1 else attention * (0.1 * math.log(factor) + 1),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", None),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", None),
        freq_factors=factors,
    )


def _same_in_all_layers(path: Path, metadata: dict[str, Any], prefix: str) -> Fields:
    """The fields under `prefix`; a list with one value for all layers stands for that value."""
    values = {}
    for key, value in metadata.items():
        if not key.startswith(prefix):
            continue
        name = key.removeprefix(prefix)
        if isinstance(value, list) and value and name in _PER_LAYER:
            if any(entry != value[0] for entry in value):
                raise ValueError(f"{path}: {key} differs between layers, which is not supported")
            value = value[0]
        values[name] = value
    return Fields(path, values, prefix)


def _special_ids(
    path: Path, metadata: dict[str, Any], vocab_size: int
) -> tuple[int | None, tuple[int, ...]]:
    """The first token of a text, and every one that ends an answer."""
    bos: tuple[int, ...]
    if "tokenizer.ggml.tokens" in metadata:
        vocabulary = Vocabulary(path, metadata)
        first = vocabulary.special_id("bos")
        bos, ends = (() if first is None else (first,)), vocabulary.end_ids()
    else:
        named = Fields(path, metadata)
        bos = named.ids(_BOS_TOKEN)
        ends = tuple(token for key in _END_TOKENS for token in named.ids(key))
    beside = path.parent / "generation_config.json"
    bos = known_ids(path, _BOS_TOKEN, bos, vocab_size)
    ends = known_ids(path, _END_TOKENS[0], ends, vocab_size)
    more = known_ids(beside, "eos_token_id", eos_ids(beside) or (), vocab_size)
    return (bos[0] if bos else None), tuple(dict.fromkeys([*ends, *more]))


def gguf_config(
    path: Path,
    metadata: dict[str, Any],
    shapes: dict[str, tuple[int, ...]],
    freq_factors: np.ndarray | None,
) -> ModelConfig:
    """Configuration of the model in the file at `path`.

    shapes: by canonical tensor name; they say whether the head is tied and which biases exist.
    freq_factors: `rope_freqs.weight` [head_dim / 2]. The end tokens are those of the metadata and
    of a generation_config.json next to the file. Raises ValueError naming the key that is missing,
    of the wrong type or not supported.
    """
    architecture = metadata["general.architecture"]
    family = gguf_family(architecture, path)
    fields = _same_in_all_layers(path, metadata, f"{architecture}.")
    if fields.values.get("expert_count"):
        raise ValueError(
            f"{path}: mixture-of-experts models are not supported ({architecture}.expert_count)"
        )
    check_keys(fields, family)
    if "model.embed_tokens.weight" not in shapes:
        raise ValueError(f"{path}: missing tensor token_embd.weight")
    vocab_size = shapes["model.embed_tokens.weight"][0]
    hidden_size = fields.integer("embedding_length")
    num_heads = fields.integer("attention.head_count")
    num_kv_heads = fields.integer("attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        raise fields.wrong(
            "attention.head_count", f"a multiple of attention.head_count_kv={num_kv_heads}"
        )
    head_dim = fields.integer("attention.key_length", 0, least=0) or hidden_size // num_heads
    if head_dim < 2 or head_dim % 2:
        given = fields.values.get("attention.key_length")
        key = "attention.key_length" if given else "embedding_length"
        raise fields.wrong(key, f"such that a head has an even length, not {head_dim}")
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(key, head_dim) != head_dim:
            raise fields.wrong(key, f"{head_dim}, the length of a key")
    context = fields.integer("context_length")
    theta = fields.number("rope.freq_base", 10000.0)
    if theta <= 1:
        raise fields.wrong("rope.freq_base", "above 1")
    bos, ends = _special_ids(path, metadata, vocab_size)
    scaling = _rope_scaling(fields, context, freq_factors)
    if scaling is not None and family.scaled_length:
        trained = scaling.original_max_position_embeddings or round(context / scaling.factor)
        scaling = replace(scaling, original_max_position_embeddings=trained)
    first = "model.layers.0.{}.bias"
    common = ModelConfig(
        architecture=family.name,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=fields.integer("block_count"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon", zero=True),
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=context,
        tie_word_embeddings="lm_head.weight" not in shapes,
        sliding_window=fields.integer("attention.sliding_window", 0, least=0) or None,
        qkv_bias=first.format(family.layer_names["q"]) in shapes,
        o_bias=first.format(family.layer_names["o"]) in shapes,
        mlp_bias=first.format(family.layer_names["gate"]) in shapes,
        bos_token_id=bos,
        eos_token_ids=ends,
    )
    return replace(common, **family.always, **family.from_gguf(fields))
