"""Fault: `dtype="auto"` ignores the type in which a checkpoint is stored."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from convert import open_checkpoint
from paxkv import LLM
from paxkv.engine.build import auto_dtype
from tests.convert import tiny_models

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    ("stored", "used"),
    [
        ("float16", "float16"),
        ("bfloat16", "bfloat16"),
        ("float32", "bfloat16"),
        ("float64", "bfloat16"),
    ],
)
def test_an_accelerator_takes_the_stored_type(
    stored: str, used: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with caplog.at_level(logging.WARNING):
        assert auto_dtype(np.dtype(stored)) == np.dtype(used)
    assert (f"type {stored} are used as bfloat16" in caplog.text) == (stored != used)


@pytest.mark.parametrize("stored", ["float16", "bfloat16", "float32"])
def test_the_cpu_takes_float32(stored: str, caplog: pytest.LogCaptureFixture) -> None:
    assert auto_dtype(np.dtype(stored)) == np.float32
    assert not caplog.text


def test_the_stored_type_is_that_of_most_weights(tmp_path: Path) -> None:
    weights: dict[str, Any] = {
        name: array.astype(np.float32 if "embed" in name or "norm" in name else BFLOAT16)
        for name, array in tiny_models.tensors().items()
    }
    assert open_checkpoint(tiny_models.write_hf(tmp_path / "hf", weights)).dtype == BFLOAT16
    for kind, stored in (("F16", np.float16), ("Q8_0", np.float32)):
        path = tiny_models.write_gguf(tmp_path / f"{kind}.gguf", tiny_models.tensors(), kind)
        assert open_checkpoint(path).dtype == stored


def test_an_engine_asks_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights: Any = {name: array.astype(np.float16) for name, array in tiny_models.tensors().items()}
    asked = []

    def note(stored: np.dtype) -> np.dtype:
        asked.append(stored)
        return np.dtype(BFLOAT16)

    monkeypatch.setattr("paxkv.engine.build.auto_dtype", note)
    llm = LLM(
        tiny_models.write_hf(tmp_path, weights),
        skip_tokenizer_init=True,
        enforce_eager=True,
        num_gpu_blocks_override=4,
        compilation_cache_dir="",
    )
    assert asked == [np.float16]
    assert {leaf.dtype for leaf in jax.tree.leaves(llm.engine.runner._params)} == {BFLOAT16}
