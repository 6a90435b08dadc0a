"""The description of the parameters and what follows from it."""

from __future__ import annotations

import dataclasses
import math

import jax
import numpy as np
import pytest

from paxkv.models.config import ModelConfig, RopeScaling
from paxkv.models.weights import ArraySpec, describe, init_params, walk

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=96,
    hidden_size=64,
    intermediate_size=80,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
)


def test_shapes_and_sources() -> None:
    tree = describe(CONFIG)
    assert list(tree) == ["embed", "layers", "norm", "head"]
    layer = tree["layers"][1]
    assert layer["qkv"] == ArraySpec(
        shape=(64, 64),
        axes=("qkv", "hidden"),
        sources=tuple(f"model.layers.1.self_attn.{name}_proj.weight" for name in "qkv"),
        source_rows=(32, 16, 16),
    )
    assert layer["qkv"].source_shape(1) == (16, 64)
    assert layer["o"].shape == (64, 32)
    assert layer["gate_up"].shape == (160, 64)
    assert layer["down"].shape == (64, 80)
    assert layer["attn_norm"].source_shape(0) == (64,)
    assert set(layer) == {"attn_norm", "qkv", "o", "mlp_norm", "gate_up", "down"}


def test_head_and_biases_only_where_the_model_has_them() -> None:
    config = dataclasses.replace(
        CONFIG, tie_word_embeddings=True, qkv_bias=True, o_bias=True, mlp_bias=True
    )
    tree = describe(config)
    assert "head" not in tree
    shapes = {key: spec.shape for key, spec in tree["layers"][0].items() if key.endswith("bias")}
    assert shapes == {
        "qkv_bias": (64,),
        "o_bias": (64,),
        "gate_up_bias": (160,),
        "down_bias": (64,),
    }


def test_every_axis_is_named() -> None:
    for path, spec in walk(describe(dataclasses.replace(CONFIG, qkv_bias=True))):
        assert len(spec.axes) == len(spec.shape), path
        assert sum(spec.source_rows) == spec.shape[0], path


def test_random_parameters() -> None:
    tree = init_params(CONFIG, jax.random.key(0), "bfloat16")
    specs = dict(walk(describe(CONFIG)))
    arrays = dict(walk(tree))
    assert arrays.keys() == specs.keys()
    for path, array in arrays.items():
        assert array.shape == specs[path].shape
        assert array.dtype == "bfloat16"
    weights = np.asarray(tree["layers"][0]["gate_up"], np.float32)
    assert np.std(weights) == pytest.approx(0.02, rel=0.1)
    assert abs(np.mean(weights)) < 0.02 * 4 / math.sqrt(weights.size)
    assert np.mean(np.asarray(tree["norm"], np.float32)) == pytest.approx(1, abs=0.02)
    other = init_params(CONFIG, jax.random.key(1), "bfloat16")
    assert not np.array_equal(tree["embed"], other["embed"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "num_layers=0 must be at least 1"),
        ({"num_kv_heads": 3}, "num_heads=4 must be a multiple of num_kv_heads=3"),
        ({"head_dim": 7}, "head_dim=7 must be even"),
        ({"hidden_act": "tanh"}, "hidden_act='tanh'.*silu"),
        ({"sliding_window": 0}, "sliding_window=0"),
        (
            {"rope_scaling": RopeScaling("per_frequency", freq_factors=(1.0,))},
            "1 freq_factors.*needs 4",
        ),
    ],
)
def test_impossible_models_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **changes)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_type": "zzz"}, "'zzz'"),
        ({"rope_type": "linear", "factor": 0.0}, "factor=0.0 must be above 0"),
        ({"rope_type": "per_frequency"}, "needs freq_factors"),
        ({"rope_type": "yarn", "freq_factors": (1.0,)}, "cannot be combined"),
        (
            {
                "rope_type": "llama3",
                "low_freq_factor": 2.0,
                "high_freq_factor": 2.0,
                "original_max_position_embeddings": 64,
            },
            "must differ",
        ),
    ],
)
def test_impossible_scalings_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RopeScaling(**fields)
