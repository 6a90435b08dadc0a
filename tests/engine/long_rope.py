"""Tiny models with scaled rotary embeddings, and a prompt longer than they were trained for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.convert import tiny_models

ORIGINAL, DERIVED = 64, 256
LENGTH = 200
PROMPT: list[int] = np.random.default_rng(5).integers(3, tiny_models.VOCAB, LENGTH).tolist()


def _scaled(length: int, scaling: dict[str, Any]) -> dict[str, Any]:
    return {"max_position_embeddings": length, "rope_scaling": scaling}


_LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}
_YARN = {"factor": 4.0, "original_max_position_embeddings": ORIGINAL}
# name: changes to the configuration
CASES: dict[str, dict[str, Any]] = {
    "linear": _scaled(ORIGINAL, {"rope_type": "linear", "factor": 4.0}),
    "linear, old spelling": _scaled(ORIGINAL, {"type": "linear", "factor": 4.0}),
    "yarn": _scaled(DERIVED, {"rope_type": "yarn"} | _YARN),
    "yarn, old spelling": _scaled(DERIVED, {"type": "yarn"} | _YARN),
    "llama3": _scaled(DERIVED, _LLAMA3 | {"factor": 32.0}),
    "dynamic": _scaled(ORIGINAL, {"rope_type": "dynamic", "factor": 4.0}),
}


def write(folder: Path, name: str) -> Path:
    """The model of a case as a Hugging Face folder; weights as tame as other tests have them."""
    weights = {key: array * 0.3 for key, array in tiny_models.tensors().items()}
    return tiny_models.write_hf(folder, weights, **CASES[name])
