"""Configurations whose rotary tables are compared with transformers."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 256,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "rope_theta": 10000.0,
    "max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 2048,
}
# name: changes to BASE, length transformers is asked about (only "dynamic" looks at it)
CASES: dict[str, tuple[dict[str, Any], int | None]] = {
    "default": ({}, None),
    "smollm2": ({"rope_theta": 100000.0}, None),
    "wide heads": ({"head_dim": 128, "rope_theta": 500000.0}, None),
    "linear": ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, None),
    "linear, old spelling": ({"rope_scaling": {"type": "linear", "factor": 2.0}}, None),
    "dynamic, short": ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 100),
    "dynamic, long": ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 20000),
    "dynamic, old spelling": ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, 30000),
    "yarn": ({"rope_scaling": YARN}, None),
    "yarn, old spelling": ({"rope_scaling": YARN | {"type": "yarn", "rope_type": None}}, None),
    "yarn, no original length": ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, None),
    "yarn, factor below one": ({"rope_scaling": YARN | {"factor": 1.0}}, None),
    "yarn, betas": ({"rope_scaling": YARN | {"beta_fast": 16.0, "beta_slow": 2.0}}, None),
    "yarn, attention factor": ({"rope_scaling": YARN | {"attention_factor": 0.75}}, None),
    "yarn, mscale": ({"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 1.1}}, None),
    "yarn, not truncated": ({"rope_scaling": YARN | {"truncate": False}}, None),
    "llama3": ({"rope_scaling": LLAMA3}, None),
    "llama 3.2": (
        {
            "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 8192},
            "rope_theta": 500000.0,
            "max_position_embeddings": 131072,
        },
        None,
    ),
    "llama3, factor 8": ({"rope_scaling": LLAMA3 | {"factor": 8.0}, "head_dim": 128}, None),
    "new spelling": ({"rope_parameters": LLAMA3 | {"rope_theta": 500000.0}}, None),
}


def config(name: str) -> dict[str, Any]:
    """config.json of the case; a None in rope_scaling leaves the key out."""
    changes = dict(CASES[name][0])
    if "rope_scaling" in changes:
        scaling = changes["rope_scaling"]
        changes["rope_scaling"] = {
            key: value for key, value in scaling.items() if value is not None
        }
    if "rope_parameters" in changes:
        return {key: value for key, value in (BASE | changes).items() if key != "rope_theta"}
    return BASE | changes
