"""Write rope_reference.json: transformers' rotary tables of every case (needs torch)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import rope_cases
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

FILE = Path(__file__).with_name("rope_reference.json")


def tables(name: str) -> dict[str, Any]:
    """Inverse frequencies and attention factor of one case."""
    config = LlamaConfig(**rope_cases.config(name))
    rope = config.rope_parameters
    if rope["rope_type"] == "default":
        dim = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float()
        inv_freq, factor = 1.0 / rope["rope_theta"] ** (dim / config.head_dim), 1.0
    else:
        compute = ROPE_INIT_FUNCTIONS[rope["rope_type"]]
        inv_freq, factor = compute(config, "cpu", seq_len=rope_cases.CASES[name][1])
    return {"inv_freq": inv_freq.tolist(), "attention_factor": float(factor)}


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: tables(name) for name in rope_cases.CASES}, indent=0) + "\n")
