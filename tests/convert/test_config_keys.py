"""Fault: a key that changes the computation and is ignored. Each is obeyed, listed or refused."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny_models as tiny
import transformers
from transformers.modeling_rope_utils import RopeParameters

from convert import gguf_keys, hf_keys, hf_rope, load_params, open_checkpoint
from convert.gguf_config import gguf_config
from convert.hf_config import hf_config
from paxkv.models.config import LayerKind, ModelConfig
from paxkv.models.families.registry import family_of
from tests.engine import dense_reference

MISTRAL = {"model_type": "mistral"}
PROMPT: list[int] = np.random.default_rng(3).integers(3, tiny.VOCAB, 24).tolist()
FULL, SLIDING = "full_attention", "sliding_attention"
# A value for each obeyed key of a config.json, and what it does there.
OBEYED: dict[str, tuple[Any, str]] = {
    "architectures": (["LlamaForSequenceClassification"], "refused"),
    "attention_bias": (True, "qkv_bias"),
    "bos_token_id": (5, "bos_token_id"),
    "eos_token_id": ([7], "eos_token_ids"),
    "head_dim": (32, "head_dim"),
    "hidden_act": ("gelu", "refused"),
    "hidden_size": (128, "hidden_size"),
    "intermediate_size": (32, "intermediate_size"),
    "layer_types": ([SLIDING, FULL], "refused"),
    "max_position_embeddings": (128, "max_position_embeddings"),
    "mlp_bias": (True, "mlp_bias"),
    "model_type": ("mistral", "architecture"),
    "num_attention_heads": (8, "num_heads"),
    "num_hidden_layers": (3, "num_layers"),
    "num_key_value_heads": (4, "num_kv_heads"),
    "rms_norm_eps": (1e-3, "rms_norm_eps"),
    "rope_parameters": ({"rope_theta": 5e5}, "rope_theta"),
    "rope_scaling": ({"type": "linear", "factor": 2}, "rope_scaling"),
    "rope_theta": (3e4, "rope_theta"),
    "sliding_window": (16, "refused"),
    "tie_word_embeddings": (False, "tie_word_embeddings"),
    "vocab_size": (97, "vocab_size"),
}


def config(tmp_path: Path, **changes: Any) -> ModelConfig:
    raw = {key: value for key, value in (tiny.CONFIG | changes).items() if value != "drop"}
    return hf_config(raw, tmp_path / "config.json")


def known(keys: Any) -> set[str]:
    assert not keys.OBEYED & keys.IRRELEVANT
    assert not (keys.OBEYED | keys.IRRELEVANT) & keys.NEUTRAL.keys()
    return set(keys.OBEYED | keys.IRRELEVANT | keys.NEUTRAL.keys())


CONFIGS = {
    "LlamaConfig": "llama",
    "MistralConfig": "mistral",
    "Qwen2Config": "qwen2",
    "Qwen3Config": "qwen3",
    "Gemma2Config": "gemma2",
    "Gemma3TextConfig": "gemma3_text",
}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_key_of_transformers_is_in_a_list(name: str) -> None:
    kind = getattr(transformers, name)
    plain = kind()
    keys = {field.name for field in dataclasses.fields(kind)} | plain.to_dict().keys()
    keys |= {key for key in vars(plain) if not key.startswith("_")}
    keys |= {
        "rope_scaling",
        "rope_theta",
        "partial_rotary_factor",
        "per_layer_config",
        "num_labels",
    }
    assert len(keys) > 30
    assert keys - known(hf_keys) - family_of(CONFIGS[name]).obeyed == set()


def test_every_rope_parameter_of_transformers_is_in_a_list() -> None:
    keys = set(RopeParameters.__annotations__)
    assert "beta_fast" in keys
    assert keys - known(hf_rope) == set()


def test_every_hyper_parameter_of_gguf_is_in_a_list() -> None:
    names = {
        value.removeprefix("{arch}.")
        for section in vars(gguf.Keys).values()
        if isinstance(section, type)
        for value in vars(section).values()
        if isinstance(value, str) and value.startswith("{arch}.") and "{dense}" not in value
    }
    assert len(names) > 80
    assert names - known(gguf_keys) == set()


@pytest.mark.parametrize("key", sorted(hf_keys.OBEYED))
def test_an_obeyed_key_says_something(tmp_path: Path, key: str) -> None:
    value, effect = OBEYED[key]
    changes = {key: value}
    if effect == "refused":
        with pytest.raises(ValueError, match=key):
            config(tmp_path, **changes)
        return
    if key == "rope_parameters":
        changes["rope_theta"] = "drop"
    before, after = config(tmp_path), config(tmp_path, **changes)
    assert getattr(before, effect) != getattr(after, effect)


@pytest.mark.parametrize("key", sorted(hf_keys.IRRELEVANT))
def test_an_irrelevant_key_says_nothing(tmp_path: Path, key: str) -> None:
    assert config(tmp_path, **{key: 3}) == config(tmp_path)


@pytest.mark.parametrize("key", sorted(hf_keys.NEUTRAL))
def test_a_key_that_is_not_obeyed_is_refused_by_name(tmp_path: Path, key: str) -> None:
    for value in hf_keys.NEUTRAL[key]:
        assert config(tmp_path, **{key: value}) == config(tmp_path)
    value = {"is_causal": False, "use_sliding_window": False}.get(key, {"x": 0.5})
    with pytest.raises(ValueError, match=key):
        config(tmp_path, **{key: value})


@pytest.mark.parametrize("key", sorted(hf_rope.NEUTRAL))
def test_a_rope_parameter_that_is_not_obeyed_is_refused(tmp_path: Path, key: str) -> None:
    for section in ("rope_scaling", "rope_parameters"):
        with pytest.raises(ValueError, match=rf"{section}\.{key}=0\.5"):
            config(tmp_path, **{section: {"type": "dynamic", "factor": 2.0, key: 0.5}})


def test_rope_parameters_nobody_knows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rope_scaling: unknown key zzz=1"):
        config(tmp_path, rope_scaling={"type": "linear", "factor": 2.0, "zzz": 1})
    nested = {FULL: {"rope_theta": 5e5}}  # without layer_types no layer has this name
    with pytest.raises(ValueError, match="rope_parameters: unknown key full_attention"):
        config(tmp_path, rope_parameters=nested)


def test_keys_nobody_knows_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert config(tmp_path, zzz=1, torch_dtype="float16") == config(tmp_path)
    assert "unknown keys are ignored: zzz\n" in caplog.text


def windows() -> Iterator[Any]:
    """Changes to a Mistral of two layers and 256 positions, and its window."""
    yield {}, 4096
    yield {"sliding_window": None}, None
    yield {"sliding_window": 128}, 128
    yield {"layer_types": None, "sliding_window": 128}, 128
    yield {"layer_types": [FULL, FULL], "sliding_window": 128}, None
    yield {"layer_types": [SLIDING, SLIDING], "sliding_window": 128}, 128
    yield {"layer_types": [SLIDING, FULL], "sliding_window": 256}, None
    yield {"layer_types": [SLIDING, FULL]}, None  # 4096 hides nothing of 256


@pytest.mark.parametrize(("changes", "window"), windows())
def test_windows_of_a_mistral(tmp_path: Path, changes: dict[str, Any], window: int | None) -> None:
    assert config(tmp_path, **MISTRAL, **changes).sliding_window == window


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": [SLIDING], "sliding_window": 8}, "layer_types=.*num_hidden_layers=2"),
        ({"layer_types": ["chunked_attention"] * 2}, "layer_types=.*'full_attention'"),
        ({"layer_types": [SLIDING] * 2, "sliding_window": None}, "need a sliding_window"),
        ({"layer_types": "sliding_attention"}, "layer_types='sliding_attention'"),
        ({"sliding_window": 0}, "sliding_window=0"),
        ({"sliding_window": [4096, None]}, r"sliding_window=\[4096, None\]"),
        ({"attention_bias": True}, "attention_bias=True is no key of transformers' MistralConfig"),
        ({"model_type": "llama", "sliding_window": 255}, "sliding_window=255 .*'llama'"),
        (
            {"model_type": "llama", "sliding_window": 8, "layer_types": [SLIDING] * 2},
            "sliding_window=8 .*'llama'",
        ),
    ],
)
def test_windows_that_are_not_supported(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **(MISTRAL | changes))


def test_a_mistral_may_mix_windows(tmp_path: Path) -> None:
    found = config(tmp_path, **MISTRAL, layer_types=[SLIDING, FULL], sliding_window=255)
    assert found.sliding_window is None
    assert found.layers == (LayerKind(255), LayerKind())


def test_a_window_that_hides_nothing_is_none_in_a_llama(tmp_path: Path) -> None:
    assert config(tmp_path, sliding_window=256).sliding_window is None
    stretched = {"type": "linear", "factor": 2.0}
    with pytest.raises(ValueError, match="sliding_window=256"):
        config(tmp_path, sliding_window=256, rope_scaling=stretched)


def test_a_mistral_has_eight_key_heads_unless_it_says_otherwise(tmp_path: Path) -> None:
    found = config(tmp_path, **MISTRAL, num_attention_heads=16, num_key_value_heads="drop")
    assert found.num_kv_heads == 8
    found = config(tmp_path, **MISTRAL, num_attention_heads=16, num_key_value_heads=None)
    assert found.num_kv_heads == 16


LLAMA = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 256,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


def from_gguf(**changes: Any) -> ModelConfig:
    metadata = LLAMA | {f"llama.{key}": value for key, value in changes.items()}
    shapes = {"model.embed_tokens.weight": (tiny.VOCAB, tiny.HIDDEN)}
    return gguf_config(Path("m.gguf"), metadata, shapes, None)


@pytest.mark.parametrize("key", sorted(gguf_keys.NEUTRAL))
def test_a_gguf_key_that_is_not_obeyed_is_refused_by_name(key: str) -> None:
    for value in gguf_keys.NEUTRAL[key]:
        assert from_gguf(**{key: value}) == from_gguf()
    with pytest.raises(ValueError, match=f"llama.{key}".replace(".", r"\.")):
        from_gguf(**{key: False if key == "attention.causal" else 0.25})


def test_gguf_rope_scaling_is_llama_cpps() -> None:
    linear = from_gguf(**{"rope.scaling.factor": 4.0})  # linear is the default
    assert linear.rope_scaling == from_gguf(**{"rope.scale_linear": 4.0}).rope_scaling
    assert linear.rope_scaling is not None
    assert (linear.rope_scaling.rope_type, linear.rope_scaling.factor) == ("linear", 4.0)
    for kind, factor in (("none", 4.0), ("linear", 1.0), ("yarn", 1.0), ("yarn", 0.0)):
        same = from_gguf(**{"rope.scaling.type": kind, "rope.scaling.factor": factor})
        assert same == from_gguf()
    with pytest.raises(ValueError, match=r"llama\.rope\.scaling\.attn_factor=0\.5"):
        from_gguf(**{"rope.scaling.factor": 4.0, "rope.scaling.attn_factor": 0.5})


def test_gguf_lists_of_one_value_for_all_layers_are_that_value() -> None:
    assert from_gguf(feed_forward_length=[96, 96]) == from_gguf()
    with pytest.raises(ValueError, match=r"llama\.feed_forward_length differs between layers"):
        from_gguf(feed_forward_length=[96, 64])


def transformers_logprobs(folder: Path) -> np.ndarray:
    """Of what follows each of `PROMPT`'s tokens, by the class that AutoModel chooses."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT])).logits[0].double()
    return torch.log_softmax(logits, -1).numpy()


def written(folder: Path, **changes: Any) -> Path:
    weights = {name: array * 0.3 for name, array in tiny.tensors(tied=False).items()}
    return tiny.write_hf(folder, weights, **changes)


@pytest.mark.parity
@pytest.mark.parametrize(("changes", "window"), [*windows(), ({"sliding_window": 4}, 4)])
def test_logprobs_of_a_mistral_are_transformers(
    tmp_path: Path, changes: dict[str, Any], window: int | None
) -> None:
    smaller = {128: 4, 256: 24}  # so that the prompt feels it, or does not
    if changes.get("sliding_window") in smaller:
        changes = changes | {"sliding_window": smaller[changes["sliding_window"]]}
    fixed = MISTRAL | {"max_position_embeddings": 24, "head_dim": tiny.HEAD_DIM}
    folder = written(tmp_path, **fixed, **changes)
    checkpoint = open_checkpoint(folder)
    params = load_params(checkpoint, put=lambda array: array)
    found = dense_reference.logprobs(params, checkpoint.config, PROMPT)
    np.testing.assert_allclose(found, transformers_logprobs(folder), atol=1e-3)
    without = dense_reference.logprobs(
        params, dataclasses.replace(checkpoint.config, sliding_window=None), PROMPT
    )
    assert (abs(found - without).max() > 0.1) == (window in (4, 128))


@pytest.mark.parity
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_irrelevant_keys_change_nothing_in_transformers(tmp_path: Path, family: str) -> None:
    strings = {"dtype", "torch_dtype", "problem_type", "name_or_path", "transformers_version"}
    skipped = {"attn_implementation", "experts_implementation", "auto_map", "id2label", "label2id"}
    changes = {
        key: 0.5 if key in ("attention_dropout", "initializer_range") else 1
        for key in hf_keys.IRRELEVANT - strings - skipped
        if not key.startswith(("output_", "return_", "use_", "_"))
    }
    plain = transformers_logprobs(written(tmp_path / "plain", model_type=family))
    other = written(tmp_path / "other", model_type=family, use_cache=False, **changes)
    np.testing.assert_array_equal(transformers_logprobs(other), plain)
