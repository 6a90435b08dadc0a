"""Rotary embedding in a config.json: `rope_scaling`, `rope_parameters`, `rope_theta`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from convert.fields import Fields, require_neutral
from paxkv.models.config import RopeParameters, RopeScaling
from paxkv.models.families.family import SLIDING, Family

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


def ropes_by_type(
    fields: Fields, layer_types: Sequence[str], length: int, family: Family
) -> dict[str, RopeParameters]:
    """The rotary embedding of each type of layer.

    From `rope_scaling` and `rope_theta`, or transformers 5's `rope_parameters`, which may be nested
    by type of layer. A family whose sliding layers have an embedding of their own says its base in
    `rope_local_base_freq` where nothing is nested. length: `max_position_embeddings`.
    """
    key = "rope_scaling" if fields.section("rope_scaling") else "rope_parameters"
    raw = fields.section(key)
    types = sorted(set(layer_types))
    local = family.defaults.get("rope_local_base_freq")
    theta = fields.number("rope_theta", family.defaults.get("rope_theta", 10000.0))
    thetas = dict.fromkeys(types, theta)
    if local is not None:
        thetas[SLIDING] = fields.number("rope_local_base_freq", local)
    may_nest = local is not None or fields.values.get("layer_types") is not None
    if may_nest and raw.keys() & set(types):
        nested = Fields(fields.source, raw, f"{key}.")
        sections = {kind: (f"{key}.{kind}", nested.section(kind)) for kind in types}
    else:
        sections = dict.fromkeys(types, (key, raw))
        if local is not None:
            sections[SLIDING] = (key, {})
    found = {}
    for kind in types:
        name, values = sections[kind]
        rope = _checked(fields, name, values)
        scaling = rope_scaling(rope, length)
        if scaling is not None and family.scaled_length:
            trained = scaling.original_max_position_embeddings or round(length / scaling.factor)
            scaling = replace(scaling, original_max_position_embeddings=trained)
        found[kind] = RopeParameters(rope.number("rope_theta", thetas[kind]), scaling)
    return found


def _checked(fields: Fields, key: str, raw: dict[str, Any]) -> Fields:
    """A section whose keys are all known and supported."""
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
