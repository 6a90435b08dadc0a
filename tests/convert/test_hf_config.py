"""config.json and generation_config.json as transformers would understand them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_models as tiny

from convert.hf_config import hf_config
from paxkv.models.config import ModelConfig, RopeScaling

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def config(tmp_path: Path, **changes: Any) -> ModelConfig:
    raw = {key: value for key, value in (tiny.CONFIG | changes).items() if value != "drop"}
    return hf_config(raw, tmp_path / "config.json")


def test_fields(tmp_path: Path) -> None:
    found = config(tmp_path, head_dim=32, attention_bias=True)
    assert found == ModelConfig(
        architecture="llama",
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        qkv_bias=True,
        o_bias=True,
        bos_token_id=1,
        eos_token_ids=(2,),
    )


def test_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    absent = ("num_key_value_heads", "rms_norm_eps", "rope_theta", "max_position_embeddings")
    absent += ("hidden_act", "tie_word_embeddings")
    found = config(tmp_path, **dict.fromkeys(absent, "drop"))
    assert (found.num_kv_heads, found.head_dim) == (4, 16)
    assert (found.rms_norm_eps, found.rope_theta) == (1e-6, 10000.0)
    assert (found.max_position_embeddings, found.tie_word_embeddings) == (2048, False)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": LLAMA3},
        {"rope_scaling": LLAMA3 | {"type": "llama3", "rope_type": None}},
        {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}, "rope_theta": "drop"},
        {
            "rope_parameters": {"full_attention": LLAMA3 | {"rope_theta": 5e5}},
            "layer_types": ["full_attention"] * 2,
        },
    ],
)
def test_every_spelling_of_rope_scaling(tmp_path: Path, changes: dict[str, Any]) -> None:
    found = config(tmp_path, **changes)
    assert found.rope_scaling == RopeScaling("llama3", 32.0, 64, 1.0, 4.0)
    assert found.rope_theta == (5e5 if "rope_parameters" in changes else 1e4)


def test_default_rope_is_no_scaling(tmp_path: Path) -> None:
    found = config(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 3e5})
    assert (found.rope_scaling, found.rope_theta) == (None, 3e5)


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_unknown_rope_type_is_refused(tmp_path: Path, key: str) -> None:
    known = "'default', 'linear', 'dynamic', 'yarn', 'llama3'"
    with pytest.raises(ValueError, match=f"'zzz'.*{known}"):
        config(tmp_path, rope_scaling={key: "zzz", "factor": 2.0})


def test_incomplete_rope_scaling_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'linear' needs factor"):
        config(tmp_path, rope_scaling={"type": "linear"})
    with pytest.raises(ValueError, match="'llama3' needs low_freq_factor"):
        config(tmp_path, rope_scaling={"rope_type": "llama3", "factor": 8.0})


def test_end_tokens(tmp_path: Path) -> None:
    assert config(tmp_path, eos_token_id=[2, 5]).eos_token_ids == (2, 5)
    assert config(tmp_path, eos_token_id=None).eos_token_ids == ()
    tiny.write_json(tmp_path / "generation_config.json", {"eos_token_id": [7, 2, 7]})
    assert config(tmp_path).eos_token_ids == (7, 2)
    tiny.write_json(tmp_path / "generation_config.json", {"eos_token_id": 9})
    assert config(tmp_path).eos_token_ids == (9,)
    tiny.write_json(tmp_path / "generation_config.json", {"temperature": 0.6})
    assert config(tmp_path).eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported; supported: llama, mistral"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization 'gptq'"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"hidden_size": "drop"}, "field hidden_size is missing"),
        ({"num_key_value_heads": 3}, "num_heads=4 must be a multiple of num_kv_heads=3"),
        ({"head_dim": 15}, "head_dim=15 must be even"),
        ({"rope_scaling": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
    ],
)
def test_what_is_not_supported_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **changes)


def test_broken_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"generation_config\.json is not valid JSON"):
        config(tmp_path)
