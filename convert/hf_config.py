"""A `ModelConfig` from a Hugging Face config.json and generation_config.json."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from convert.fields import Fields
from convert.hf_keys import check_keys
from convert.hf_rope import rope_fields, rope_scaling
from convert.token_ids import known_ids
from paxkv.models.config import ModelConfig

# transformers' defaults where the families differ
_LENGTH = {"llama": 2048, "mistral": 131072}
_KV_HEADS = {"mistral": 8}
_WINDOW = {"mistral": 4096}
_FULL, _SLIDING = "full_attention", "sliding_attention"


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; ValueError naming the file if it is not one."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{path} is missing") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return content


def eos_ids(path: Path) -> tuple[int, ...] | None:
    """The eos_token_id field of a generation_config.json, None if file or field is missing."""
    if not path.exists():
        return None
    fields = Fields(path, read_json(path))
    return None if fields.values.get("eos_token_id") is None else fields.ids("eos_token_id")


def _or_none(fields: Fields, key: str, missing: int | None) -> int | None:
    """A count, or None where the file says null; `missing` where it says nothing."""
    return fields.integer(key, None) if key in fields.values else missing


def _layer_types(fields: Fields, num_layers: int) -> list[str] | None:
    kinds = fields.values.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise fields.wrong("layer_types", f"a list of num_hidden_layers={num_layers} names")
    if not all(kind in (_FULL, _SLIDING) for kind in kinds):
        raise fields.wrong("layer_types", f"a list of {_FULL!r} and {_SLIDING!r}")
    return kinds


def _with_window(config: ModelConfig, fields: Fields, kinds: list[str] | None) -> ModelConfig:
    """`config` with the window of its layers.

    A Mistral without `layer_types` slides everywhere; with them it is transformers' Ministral. In a
    Llama transformers forgets keys beyond the window while decoding, but masks none in a prompt.
    Raises ValueError for a window that this decoder would not obey.
    """
    window = _or_none(fields, "sliding_window", _WINDOW.get(config.architecture))
    kinds = kinds or [_FULL if window is None else _SLIDING]
    if _SLIDING not in kinds:
        return config
    if window is None:
        raise ValueError(f"{fields.source}: layer_types {_SLIDING!r} need a sliding_window")
    if config.architecture == "mistral" and _FULL not in kinds:
        return replace(config, sliding_window=window)
    if window >= config.derived_max_len:
        return config  # it hides nothing
    if config.architecture == "mistral":
        raise ValueError(
            f"{fields.source}: layer_types mix {_FULL!r} and {_SLIDING!r} (sliding_window="
            f"{window}), which is not supported: all layers must be of one kind"
        )
    raise ValueError(
        f"{fields.source}: sliding_window={window} is not supported with model_type 'llama'; if "
        "the model was trained without it, set it to null"
    )


def _head_dim(fields: Fields, hidden_size: int, num_heads: int) -> int:
    given = fields.integer("head_dim", None)
    if given is None and hidden_size % num_heads:
        raise ValueError(
            f"{fields.source}: hidden_size={hidden_size} must be a multiple of "
            f"num_attention_heads={num_heads} where head_dim is missing"
        )
    return given or hidden_size // num_heads


def hf_config(raw: dict[str, Any], path: Path) -> ModelConfig:
    """Configuration from config.json's content and a generation_config.json beside it.

    raw: the parsed config.json. path: its file, for messages and for its neighbours.
    Raises ValueError naming the key for families, options and quantizations that are not supported
    and for values of the wrong type.
    """
    fields = Fields(path, raw)
    check_keys(fields)
    family = fields.text("model_type")
    num_layers = fields.integer("num_hidden_layers")
    num_heads = fields.integer("num_attention_heads")
    vocab_size = fields.integer("vocab_size")
    hidden_size = fields.integer("hidden_size")
    length = fields.integer("max_position_embeddings", _LENGTH[family])
    kinds = _layer_types(fields, num_layers)
    rope = rope_fields(fields, frozenset(kinds or ()))
    beside = path.parent / "generation_config.json"
    ends = eos_ids(beside)
    kv_heads = _or_none(fields, "num_key_value_heads", _KV_HEADS.get(family))
    bos = fields.ids("bos_token_id")
    if len(bos) > 1:
        raise fields.wrong("bos_token_id", "a token id or null")
    bos = known_ids(path, "bos_token_id", bos, vocab_size)
    activation = fields.text("hidden_act", "silu")
    config = ModelConfig(
        architecture=family,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=kv_heads or num_heads,
        head_dim=_head_dim(fields, hidden_size, num_heads),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6, zero=True),
        rope_theta=rope.number("rope_theta", fields.number("rope_theta", 10000.0)),
        rope_scaling=rope_scaling(rope, length),
        max_position_embeddings=length,
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        hidden_act={"swish": "silu"}.get(activation, activation),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=known_ids(
            path if ends is None else beside,
            "eos_token_id",
            fields.ids("eos_token_id") if ends is None else ends,
            vocab_size,
        ),
    )
    return _with_window(config, fields, kinds)
