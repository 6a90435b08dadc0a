"""A `ModelConfig` from a Hugging Face config.json and generation_config.json."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from convert.fields import Fields
from convert.hf_keys import check_keys
from convert.hf_rope import ropes_by_type
from convert.token_ids import known_ids
from paxkv.models.config import ModelConfig
from paxkv.models.families.family import FULL, SLIDING, Family, layer_kinds
from paxkv.models.families.registry import hf_family


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


def _layer_types(fields: Fields, num_layers: int, default: list[str]) -> list[str]:
    kinds = fields.values.get("layer_types")
    if kinds is None:
        return default
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        raise fields.wrong("layer_types", f"a list of num_hidden_layers={num_layers} names")
    if not all(kind in (FULL, SLIDING) for kind in kinds):
        raise fields.wrong("layer_types", f"a list of {FULL!r} and {SLIDING!r}")
    return kinds


def _with_layers(
    config: ModelConfig, fields: Fields, family: Family, types: list[str], window: int | None
) -> ModelConfig:
    """`config`, whose ropes are (full,) or (full, sliding), with the kinds of its layers.

    Raises ValueError for a window that this decoder would not obey.
    """
    if SLIDING in types and window is None:
        raise ValueError(f"{fields.source}: layer_types {SLIDING!r} need a sliding_window")
    local = len(config.ropes) - 1
    hides_nothing = window is not None and window >= config.derived_max_len
    if SLIDING in types and not family.slides and not hides_nothing:
        raise ValueError(
            f"{fields.source}: sliding_window={window} is not supported with model_type "
            f"{family.name!r}; if the model was trained without it, set it to null"
        )
    if hides_nothing and (FULL in types or not family.slides):
        window = None
    kinds = layer_kinds(types, window, local)
    if len(set(kinds)) == 1 and not local:
        return replace(config, sliding_window=kinds[0].window)
    return replace(config, layer_kinds=kinds)


def _head_dim(fields: Fields, family: Family, hidden_size: int, num_heads: int) -> int:
    given = fields.integer("head_dim", None)
    if "head_dim" not in fields.values:
        given = family.defaults.get("head_dim")
    if given is None and hidden_size % num_heads:
        raise ValueError(
            f"{fields.source}: hidden_size={hidden_size} must be a multiple of "
            f"num_attention_heads={num_heads} where head_dim is missing"
        )
    return given or hidden_size // num_heads


def hf_config(raw: dict[str, Any], path: Path) -> ModelConfig:
    """Configuration from config.json's content and a generation_config.json beside it.

    raw: the parsed config.json. path: its file, for messages and for the files beside it.
    Raises ValueError naming the key for families, options and quantizations that are not supported
    and for values of the wrong type.
    """
    family = hf_family(raw.get("model_type"), path)
    fields = Fields(path, raw)
    check_keys(fields, family)
    defaults = family.defaults

    def count(key: str) -> int:
        return fields.integer(key, defaults[key]) if key in defaults else fields.integer(key)

    def ids(key: str) -> tuple[int, ...]:
        if key in defaults and key not in raw:
            return (defaults[key],)
        return fields.ids(key)

    num_layers = count("num_hidden_layers")
    num_heads = count("num_attention_heads")
    vocab_size = count("vocab_size")
    hidden_size = count("hidden_size")
    length = count("max_position_embeddings")
    window, default_types = family.layers(fields, num_layers)
    types = _layer_types(fields, num_layers, default_types)
    ropes = ropes_by_type(fields, types, length, family)
    rope = ropes.get(FULL, ropes[types[0]])
    others = () if ropes.get(SLIDING, rope) == rope else (ropes[SLIDING],)
    beside = path.parent / "generation_config.json"
    ends = eos_ids(beside)
    kv_heads = fields.integer("num_key_value_heads", None)
    if "num_key_value_heads" not in raw:
        kv_heads = defaults.get("num_key_value_heads")
    bos = ids("bos_token_id")
    if len(bos) > 1:
        raise fields.wrong("bos_token_id", "a token id or null")
    bos = known_ids(path, "bos_token_id", bos, vocab_size)
    activation = fields.text(*family.activation)
    bias = fields.flag("attention_bias", False)
    common = ModelConfig(
        architecture=family.name,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=count("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=kv_heads or num_heads,
        head_dim=_head_dim(fields, family, hidden_size, num_heads),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6, zero=True),
        rope_theta=rope.rope_theta,
        rope_scaling=rope.rope_scaling,
        other_ropes=others,
        max_position_embeddings=length,
        tie_word_embeddings=fields.flag(
            "tie_word_embeddings", defaults.get("tie_word_embeddings", False)
        ),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False),
        hidden_act={"swish": "silu"}.get(activation, activation),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=known_ids(
            path if ends is None else beside,
            "eos_token_id",
            ids("eos_token_id") if ends is None else ends,
            vocab_size,
        ),
    )
    config = replace(common, **family.always, **family.from_hf(fields))
    return _with_layers(config, fields, family, types, window)
