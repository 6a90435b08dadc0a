"""GGUF files of each family mean what the Hugging Face directory of the same model means."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from convert import load_params, open_checkpoint
from convert.hf_config import hf_config
from paxkv.models.config import ModelConfig
from paxkv.models.families.registry import FAMILIES
from tests.engine import dense_reference
from tests.models import tiny_families as tiny

PROMPT: list[int] = np.random.default_rng(5).integers(3, 96, 27).tolist()
ARCHITECTURES = {
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3": gguf.MODEL_ARCH.GEMMA3,
}
# llama.cpp derives this from the length of a head.
HF = {
    name: tiny.MODELS[name] | ({"query_pre_attn_scalar": 16} if "gemma" in name else {})
    for name in ARCHITECTURES
}
HF["gemma3"]["final_logit_softcapping"] = None


def write(path: Path, name: str, **changes: Any) -> Path:
    """A file as llama.cpp's converter writes it, its tensors named by the gguf library."""
    config, arch = HF[name], ARCHITECTURES[name]
    model = hf_config(config, path)
    writer = gguf.GGUFWriter(path, name)
    writer.add_block_count(model.num_layers)
    writer.add_context_length(model.max_position_embeddings)
    writer.add_embedding_length(model.hidden_size)
    writer.add_feed_forward_length(model.intermediate_size)
    writer.add_head_count(model.num_heads)
    writer.add_head_count_kv(model.num_kv_heads)
    writer.add_key_length(model.head_dim)
    writer.add_value_length(model.head_dim)
    writer.add_layer_norm_rms_eps(model.rms_norm_eps)
    writer.add_rope_freq_base(model.rope_theta)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if "gemma" in name:
        writer.add_sliding_window(7)
    if name == "gemma2":
        writer.add_attn_logit_softcapping(1.5)
        writer.add_final_logit_softcapping(20.0)
    if name == "gemma3":
        writer.add_uint32("gemma3.attention.sliding_window_pattern", 3)
        writer.add_float32("gemma3.rope.freq_base_swa", 100.0)
    for key, value in changes.items():
        writer.add_float32(f"{name}.{key}", value)
    names = gguf.get_tensor_name_map(arch, model.num_layers)
    for hf_name, weight in tiny.weights(config).items():
        stored = weight + np.float32("gemma" in name and "norm" in hf_name)
        found = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        assert found is not None
        writer.add_tensor(found, stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logprobs(config: ModelConfig, params: Any) -> np.ndarray:
    return dense_reference.logprobs(params, config, PROMPT)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_gguf_file_is_the_same_model(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tiny.MODELS, name, HF[name])
    stored = open_checkpoint(tiny.write(tmp_path / "hf", name))
    found = open_checkpoint(write(tmp_path / "m.gguf", name))
    want = dataclasses.replace(stored.config, norm_unit_offset=False)
    same = dataclasses.replace(
        found.config,
        attention_scale=want.attention_scale,
        rms_norm_eps=want.rms_norm_eps,  # a float32 in the file
    )
    assert same == want
    assert found.config.attention_scale in (None, want.attention_scale)
    put = np.asarray
    np.testing.assert_allclose(
        logprobs(found.config, load_params(found, put=put)),
        logprobs(stored.config, load_params(stored, put=put)),
        atol=1e-4,
    )


def test_the_largest_gemma_has_a_scale_of_its_own() -> None:
    gemma3 = next(family for family in FAMILIES if family.gguf == "gemma3")
    from convert.fields import Fields

    sizes = {"embedding_length": 5376, "attention.head_count": 32, "block_count": 62}
    assert gemma3.from_gguf(Fields("m.gguf", sizes))["attention_scale"] == 168**-0.5
    small = gemma3.from_gguf(Fields("m.gguf", sizes | {"block_count": 34}))
    assert small["attention_scale"] is None
    kinds = small["layer_kinds"]
    assert [kind.rope for kind in kinds[:7]] == [1, 1, 1, 1, 1, 0, 1]


def test_what_another_family_obeys_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", "qwen3", final_logit_softcapping=30.0)
    with pytest.raises(ValueError, match=r"qwen3\.final_logit_softcapping=30"):
        open_checkpoint(path)
