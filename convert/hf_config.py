"""A `ModelConfig` from a Hugging Face config.json and generation_config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paxkv.models.config import ModelConfig, RopeScaling

_FAMILIES = ("llama", "mistral")
_LENGTH_TYPES = ("yarn", "llama3")
_OPTIONAL = (
    "low_freq_factor",
    "high_freq_factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; ValueError naming the file if it is not one."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{path} is missing") from None
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return content


def as_ids(value: Any) -> tuple[int, ...]:
    """Token ids of a field that holds an id, a list of ids or nothing."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


def eos_ids(path: Path) -> tuple[int, ...] | None:
    """The eos_token_id field of a generation_config.json, None if file or field is missing."""
    if not path.exists():
        return None
    value = read_json(path).get("eos_token_id")
    return None if value is None else as_ids(value)


def rope_scaling(raw: dict[str, Any], max_position_embeddings: int) -> RopeScaling | None:
    """Rope scaling from `rope_scaling` or `rope_parameters`, in either spelling of its type.

    As in transformers, yarn and llama3 take `max_position_embeddings` for a missing
    `original_max_position_embeddings`. Raises ValueError naming an unknown type.
    """
    kind = raw.get("rope_type") or raw.get("type") or "default"
    if raw.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(
            f"rope_scaling: partial_rotary_factor={raw['partial_rotary_factor']!r} is not supported"
        )
    if kind == "default":
        return None
    original = raw.get("original_max_position_embeddings")
    factor = raw.get("factor")
    if kind in _LENGTH_TYPES:
        original = original or max_position_embeddings
        if factor is None and kind == "yarn":
            factor = max_position_embeddings / original
    if factor is None and kind in ("linear", "dynamic", "llama3"):
        raise ValueError(f"rope_scaling: rope_type {kind!r} needs factor")
    return RopeScaling(
        rope_type=kind,
        factor=1.0 if factor is None else float(factor),
        original_max_position_embeddings=original,
        truncate=raw.get("truncate", True),
        **{key: raw[key] for key in _OPTIONAL if raw.get(key) is not None},
    )


def _flat_rope(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """`rope_scaling` or transformers 5's `rope_parameters`, which may be nested by layer type."""
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    nested = [value for value in rope.values() if isinstance(value, dict)]
    if not nested:
        return dict(rope)
    if any(value != nested[0] for value in nested):
        raise ValueError(f"{path}: rope_parameters differ between layers, which is not supported")
    return dict(nested[0])


def hf_config(raw: dict[str, Any], path: Path) -> ModelConfig:
    """Configuration from config.json's content and a generation_config.json beside it.

    raw: the parsed config.json. path: its file, for messages and for its neighbours.
    Raises ValueError for families, options and quantizations that are not supported.
    """
    family = raw.get("model_type")
    if family not in _FAMILIES:
        raise ValueError(
            f"{path}: model_type {family!r} is not supported; supported: {', '.join(_FAMILIES)}"
        )
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method")
        raise ValueError(f"{path}: quantization {method!r} is not supported")

    def need(key: str) -> Any:
        if raw.get(key) is None:
            raise ValueError(f"{path}: field {key} is missing")
        return raw[key]

    num_heads = need("num_attention_heads")
    rope = _flat_rope(raw, path)
    length = raw.get("max_position_embeddings", 2048 if family == "llama" else 131072)
    generation = eos_ids(path.parent / "generation_config.json")
    ends = as_ids(raw.get("eos_token_id")) if generation is None else generation
    return ModelConfig(
        architecture=family,
        vocab_size=need("vocab_size"),
        hidden_size=need("hidden_size"),
        intermediate_size=need("intermediate_size"),
        num_layers=need("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=raw.get("num_key_value_heads") or num_heads,
        head_dim=raw.get("head_dim") or need("hidden_size") // num_heads,
        rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        rope_scaling=rope_scaling(rope, length),
        max_position_embeddings=length,
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        sliding_window=raw.get("sliding_window") if family == "mistral" else None,
        attention_bias=bool(raw.get("attention_bias", False)),
        mlp_bias=bool(raw.get("mlp_bias", False)),
        hidden_act={"swish": "silu"}.get(act := raw.get("hidden_act", "silu"), act),
        bos_token_id=raw.get("bos_token_id"),
        eos_token_ids=tuple(dict.fromkeys(ends)),
    )
