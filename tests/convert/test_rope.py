"""Rotary tables against transformers' rope utilities (stored, see make_rope_reference.py)."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rope_cases

from convert.hf_config import hf_config
from paxkv.models.config import ModelConfig, RopeScaling
from paxkv.models.rope import rope_parameters

REFERENCE = json.loads(Path(__file__).with_name("rope_reference.json").read_text())


def model(name: str) -> ModelConfig:
    return hf_config(rope_cases.config(name), Path("config.json"))


def assert_equal(config: ModelConfig, length: int | None, expected: dict[str, Any]) -> None:
    inv_freq, factor = rope_parameters(config, length)
    assert inv_freq.dtype == np.float32
    assert inv_freq.shape == (config.head_dim // 2,)
    np.testing.assert_allclose(inv_freq, expected["inv_freq"], rtol=1e-6)
    assert factor == pytest.approx(expected["attention_factor"], rel=1e-9)


@pytest.mark.parametrize("name", rope_cases.CASES)
def test_equal_to_transformers(name: str) -> None:
    assert_equal(model(name), rope_cases.CASES[name][1], REFERENCE[name])


@pytest.mark.parity
@pytest.mark.parametrize("name", rope_cases.CASES)
def test_equal_to_transformers_now(name: str) -> None:
    pytest.importorskip("torch")
    tables = importlib.import_module("make_rope_reference").tables
    assert_equal(model(name), rope_cases.CASES[name][1], tables(name))


@pytest.mark.parametrize("name", [name for name in rope_cases.CASES if "llama" in name])
def test_planted_factor_is_seen(name: str) -> None:
    config = model(name)
    assert config.rope_scaling is not None
    planted = dataclasses.replace(config.rope_scaling, factor=config.rope_scaling.factor + 1)
    with pytest.raises(AssertionError):
        assert_equal(dataclasses.replace(config, rope_scaling=planted), None, REFERENCE[name])


def test_dynamic_is_fixed_by_max_model_len() -> None:
    config = model("dynamic, long")
    short, _ = rope_parameters(config, 100)
    np.testing.assert_array_equal(short, rope_parameters(config, None)[0])
    assert rope_parameters(config, 20000)[0][-1] < short[-1]


def test_factors_per_frequency_divide() -> None:
    plain = model("default")
    factors = np.linspace(1, 32, plain.head_dim // 2, dtype=np.float32)
    base, _ = rope_parameters(plain)
    scaling = RopeScaling("per_frequency", freq_factors=tuple(factors.tolist()))
    found, factor = rope_parameters(dataclasses.replace(plain, rope_scaling=scaling))
    np.testing.assert_allclose(found, base / factors, rtol=1e-6)
    assert factor == 1.0
    scaling = dataclasses.replace(scaling, rope_type="linear", factor=2.0)
    found, _ = rope_parameters(dataclasses.replace(plain, rope_scaling=scaling))
    np.testing.assert_allclose(found, base / factors / 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("default", 8192),
        ("linear", 2 * 8192),
        ("dynamic, long", 2 * 8192),
        ("yarn", 4 * 2048),
        ("yarn, no original length", 4 * 8192),
        ("llama3", 8192),
        ("llama 3.2", 131072),
    ],
)
def test_derived_length(name: str, length: int) -> None:
    assert model(name).derived_max_len == length


def test_derived_length_takes_the_original_where_given() -> None:
    raw = rope_cases.config("linear")
    raw["rope_scaling"] = raw["rope_scaling"] | {"original_max_position_embeddings": 4096}
    assert hf_config(raw, Path("config.json")).derived_max_len == 8192
