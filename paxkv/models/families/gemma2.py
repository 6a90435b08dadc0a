"""Gemma 2: as Gemma 3, with soft caps instead of norms of queries and keys."""

from __future__ import annotations

from typing import Any

from paxkv.models.families import gemma
from paxkv.models.families.family import Family, Fields, window_or


def _from_hf(fields: Fields) -> dict[str, Any]:
    caps = (("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0))
    found = {key: fields.number(key, None if key in fields.values else cap) for key, cap in caps}
    return {**gemma.from_hf(fields), **found}


def _from_gguf(fields: Fields) -> dict[str, Any]:
    return {
        **gemma.from_gguf(fields, 2, 46),
        "attn_logit_softcapping": fields.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": fields.number("final_logit_softcapping", 30.0),
    }


GEMMA2 = Family(
    name="gemma2",
    architectures=("Gemma2ForCausalLM", "Gemma2Model"),
    layer_names=gemma.NAMES,
    always={"post_norms": True},
    defaults={**gemma.DEFAULTS, "vocab_size": 256000, "max_position_embeddings": 8192},
    activation=gemma.ACTIVATION,
    obeyed=frozenset({*gemma.OBEYED, "attn_logit_softcapping"}),
    absent={"mlp_bias": (None, False, 0)},
    layers=lambda fields, num_layers: (window_or(fields, 4096), gemma.every(2, num_layers)),
    from_hf=_from_hf,
    gguf="gemma2",
    gguf_obeyed=frozenset({"attn_logit_softcapping", "final_logit_softcapping"}),
    from_gguf=_from_gguf,
)
