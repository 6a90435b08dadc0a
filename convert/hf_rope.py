"""Rotary embedding in a config.json: `rope_scaling`, `rope_parameters`, `rope_theta`."""

from __future__ import annotations

from typing import Any

from convert.fields import Fields, require_neutral
from paxkv.models.config import RopeScaling

_LENGTH_TYPES = ("yarn", "llama3")
_NUMBERS = (
    "low_freq_factor",
    "high_freq_factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
)
OBEYED = frozenset(
    {
        *_NUMBERS,
        "rope_type",
        "type",
        "factor",
        "original_max_position_embeddings",
        "truncate",
        "rope_theta",
    }
)
IRRELEVANT = frozenset({"finetuned"})
# Of rope types that are refused, or that one engine or another reads beside the type.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "alpha": (None,),
    "attn_factor": (None, 1),
    "beta": (None,),
    "extrapolation_factor": (None, 1),
    "llama_4_scaling_beta": (None, 0),
    "long_factor": (None,),
    "mrope_interleaved": (None, False),
    "mrope_section": (None, []),
    "partial_rotary_factor": (None, 1),
    "short_factor": (None,),
}


def rope_fields(fields: Fields, layer_types: frozenset[str]) -> Fields:
    """`rope_scaling`, else transformers 5's `rope_parameters`, which may be nested by layer type.

    layer_types: the kinds of layers that the configuration names. Raises ValueError if they do not
    share one embedding.
    """
    key = "rope_scaling" if fields.section("rope_scaling") else "rope_parameters"
    raw = fields.section(key)
    if layer_types & raw.keys():
        by_type = [raw.get(kind) for kind in sorted(layer_types)]
        if any(value != by_type[0] for value in by_type):
            raise ValueError(f"{fields.source}: {key} differ between layers, which is unsupported")
        key, raw = f"{key}.{min(layer_types)}", by_type[0]  # type: ignore[assignment]
        if not isinstance(raw, dict):
            raise ValueError(f"{fields.source}: {key}={raw!r} must be an object")
    unknown = sorted(raw.keys() - OBEYED - IRRELEVANT - NEUTRAL.keys())
    if unknown:
        raise ValueError(
            f"{fields.source}: {key}: unknown key {unknown[0]}={raw[unknown[0]]!r}; known: "
            f"{', '.join(sorted(OBEYED))}"
        )
    rope = Fields(fields.source, raw, f"{key}.")
    require_neutral(rope, NEUTRAL, "is not supported")
    return rope


def rope_scaling(rope: Fields, max_position_embeddings: int) -> RopeScaling | None:
    """Rope scaling with either spelling of its type.

    As in transformers, yarn and llama3 take `max_position_embeddings` for a missing
    `original_max_position_embeddings`. Raises ValueError naming an unknown type.
    """
    kind = rope.text("rope_type", None) or rope.text("type", None) or "default"
    if kind == "default":
        return None
    original = rope.integer("original_max_position_embeddings", None)
    factor = rope.number("factor", None)
    if kind in _LENGTH_TYPES:
        original = original or max_position_embeddings
        if factor is None and kind == "yarn":
            factor = max_position_embeddings / original
    if factor is None and kind in ("linear", "dynamic", "llama3"):
        raise ValueError(f"{rope.source}: rope_scaling: rope_type {kind!r} needs factor")
    numbers: dict[str, Any] = {key: rope.number(key, None, zero=True) for key in _NUMBERS}
    return RopeScaling(
        rope_type=kind,
        factor=1.0 if factor is None else factor,
        original_max_position_embeddings=original,
        truncate=rope.flag("truncate", True),
        **numbers,
    )
