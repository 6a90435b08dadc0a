"""GGUF files against the tensors they were made from."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny_models as tiny

from convert import load_params, open_checkpoint
from paxkv.models.config import RopeScaling


def read_all(path: Path) -> dict[str, np.ndarray]:
    checkpoint = open_checkpoint(path)
    return {name: checkpoint.tensor(name) for name in checkpoint.names()}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        np.testing.assert_array_equal(found[name], weight, err_msg=name)


@pytest.mark.parametrize("tied", [True, False])
def test_float32_file_equals_the_original(tmp_path: Path, tied: bool) -> None:
    weights = tiny.tensors(tied=tied)
    path = tiny.write_gguf(tmp_path / "m.gguf", weights)
    assert_same(read_all(path), weights)
    assert open_checkpoint(path).config.tie_word_embeddings is tied


def test_biases_are_put_in_order_too(tmp_path: Path) -> None:
    weights = tiny.tensors(bias=True)
    path = tiny.write_gguf(tmp_path / "m.gguf", weights)
    assert_same(read_all(path), weights)
    config = open_checkpoint(path).config
    assert (config.qkv_bias, config.o_bias, config.mlp_bias) == (True, True, True)


def test_planted_wrong_head_count_of_k_is_seen(tmp_path: Path) -> None:
    weights = tiny.tensors()
    path = tiny.write_gguf(tmp_path / "m.gguf", weights, heads_of_k=tiny.HEADS)
    with pytest.raises(AssertionError, match="k_proj"):
        assert_same(read_all(path), weights)


def test_unpermuted_architectures_are_left_alone(tmp_path: Path) -> None:
    weights = tiny.tensors()
    path = tiny.write_gguf(tmp_path / "m.gguf", weights, architecture="qwen2")
    name = "model.layers.0.self_attn.k_proj.weight"
    stored = tiny.llama_cpp_order(weights[name], tiny.KV_HEADS)
    np.testing.assert_array_equal(open_checkpoint(path).tensor(name), stored)


def can_quantize() -> list[str]:
    kinds = []
    for kind in gguf.GGMLQuantizationType:
        try:
            gguf.quantize(np.zeros((1, 256), np.float32), kind)
        except (NotImplementedError, KeyError, ValueError):
            continue
        if gguf.GGML_QUANT_SIZES[kind][0] <= 32:
            kinds.append(kind.name)
    return kinds


@pytest.mark.parametrize("kind", can_quantize())
def test_every_type_equals_the_library(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convert.checkpoint.CHUNK_BYTES", 3000)
    weights = tiny.tensors()
    found = read_all(tiny.write_gguf(tmp_path / "m.gguf", weights, kind))
    quant = gguf.GGMLQuantizationType[kind]
    for name, weight in weights.items():
        expected = weight
        if weight.ndim == 2:
            expected = gguf.dequantize(gguf.quantize(weight, quant), quant)
        np.testing.assert_array_equal(found[name].astype(np.float32), expected, err_msg=name)


def test_quantized_file_of_a_known_model_is_float32(tmp_path: Path) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.tensors(), "Q8_0")
    assert open_checkpoint(path).dtype == np.float32
    half = tiny.write_gguf(tmp_path / "h.gguf", tiny.tensors(), "F16")
    assert open_checkpoint(half).dtype == np.float16


def test_configuration_comes_from_the_metadata(tmp_path: Path) -> None:
    def metadata(writer: gguf.GGUFWriter) -> None:
        writer.add_eot_token_id(5)
        writer.add_sliding_window(64)

    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.tensors(), metadata=metadata)
    tiny.write_json(tmp_path / "generation_config.json", {"eos_token_id": [2, 7]})
    config = open_checkpoint(path).config
    assert config.architecture == "llama"
    assert (config.vocab_size, config.hidden_size) == (tiny.VOCAB, tiny.HIDDEN)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 16)
    assert config.rms_norm_eps == pytest.approx(1e-5)
    assert config.max_position_embeddings == 256
    assert config.sliding_window == 64
    assert config.bos_token_id == 1
    assert config.eos_token_ids == (2, 5, 7)
    assert config.rope_scaling is None


def test_rope_factor_tensor_of_ones_changes_nothing(tmp_path: Path) -> None:
    ones = {"rope_freqs.weight": np.ones(tiny.HEAD_DIM // 2, np.float32)}
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.tensors(), extra=ones)
    checkpoint = open_checkpoint(path)
    assert checkpoint.config.rope_scaling is None
    load_params(checkpoint, put=lambda array: array)


def test_rope_factor_tensor_is_used(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, tiny.HEAD_DIM // 2, dtype=np.float32)
    path = tiny.write_gguf(
        tmp_path / "m.gguf", tiny.tensors(), extra={"rope_freqs.weight": factors}
    )
    scaling = open_checkpoint(path).config.rope_scaling
    assert scaling == RopeScaling("per_frequency", freq_factors=tuple(factors.tolist()))


def test_rope_factor_tensor_of_wrong_length_is_refused(tmp_path: Path) -> None:
    extra = {"rope_freqs.weight": np.full(3, 2, np.float32)}
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.tensors(), extra=extra)
    with pytest.raises(ValueError, match=r"3 freq_factors.*needs 8"):
        open_checkpoint(path)


def test_rope_scaling_metadata(tmp_path: Path) -> None:
    def linear(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    def yarn(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(64)

    def longrope(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)

    def scaling(name: str, metadata: object) -> RopeScaling | None:
        path = tiny.write_gguf(tmp_path / name, tiny.tensors(), metadata=metadata)
        return open_checkpoint(path).config.rope_scaling

    assert scaling("l.gguf", linear) == RopeScaling("linear", 4.0)
    assert scaling("y.gguf", yarn) == RopeScaling("yarn", 4.0, 64)
    with pytest.raises(ValueError, match="longrope"):
        scaling("r.gguf", longrope)


@pytest.mark.parametrize(("kind", "name"), [(gguf.GGMLQuantizationType.Q8_1, "Q8_1"), (999, "999")])
def test_types_that_cannot_be_read_are_named_at_start(tmp_path: Path, kind: int, name: str) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.tensors(), "F16")
    raw = bytearray(path.read_bytes())
    at = raw.index(b"blk.1.ffn_down.weight") + len(b"blk.1.ffn_down.weight") + 4 + 2 * 8
    assert raw[at : at + 4] == (1).to_bytes(4, "little")  # F16
    raw[at : at + 4] = int(kind).to_bytes(4, "little")
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=rf"blk\.1\.ffn_down\.weight.*{name}"):
        open_checkpoint(path)


def test_truncated_and_foreign_files_are_named(tmp_path: Path) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.tensors())
    raw = path.read_bytes()
    path.write_bytes(raw[:-5000])
    with pytest.raises(ValueError, match=r"m\.gguf is truncated: tensor"):
        open_checkpoint(path)
    path.write_bytes(raw[:100])
    with pytest.raises(ValueError, match=r"m\.gguf is truncated: its header"):
        open_checkpoint(path)
    path.write_bytes(b"hello, world")
    with pytest.raises(ValueError, match="not a GGUF file"):
        open_checkpoint(path)


def test_missing_surplus_and_misshaped_tensors_are_named(tmp_path: Path) -> None:
    weights = tiny.tensors()
    name = "model.layers.1.mlp.up_proj.weight"
    less = {key: value for key, value in weights.items() if key != name}
    path = tiny.write_gguf(tmp_path / "less.gguf", less)
    with pytest.raises(ValueError, match=f"missing tensor {name}"):
        load_params(open_checkpoint(path), put=np.asarray)
    more = {"blk.0.attn_q_norm.weight": np.ones(tiny.HEAD_DIM, np.float32)}
    path = tiny.write_gguf(tmp_path / "more.gguf", weights, extra=more)
    with pytest.raises(ValueError, match=r"surplus tensor .*self_attn\.q_norm\.weight"):
        load_params(open_checkpoint(path), put=np.asarray)
    other = weights | {name: np.ones((tiny.INNER, 32), np.float32)}
    path = tiny.write_gguf(tmp_path / "other.gguf", other)
    with pytest.raises(ValueError, match=rf"{name} has shape \[96, 32\], expected \[96, 64\]"):
        load_params(open_checkpoint(path), put=np.asarray)


def test_other_architectures_and_parts_are_refused(tmp_path: Path) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.tensors(), architecture="bloom")
    with pytest.raises(ValueError, match=r"'bloom' is not supported; supported: llama"):
        open_checkpoint(path)
    path = tiny.write_gguf(
        tmp_path / "p.gguf",
        tiny.tensors(),
        metadata=lambda writer: writer.add_uint16("split.count", 3),
    )
    with pytest.raises(ValueError, match="one of 3 parts"):
        open_checkpoint(path)


def test_a_directory_with_one_gguf_file(tmp_path: Path) -> None:
    tiny.write_gguf(tmp_path / "a.gguf", tiny.tensors())
    assert open_checkpoint(tmp_path).config.num_layers == tiny.LAYERS
    tiny.write_json(tmp_path / "config.json", {"model_type": "llama"})
    assert open_checkpoint(tmp_path).config.num_layers == tiny.LAYERS
    tiny.write_gguf(tmp_path / "b.gguf", tiny.tensors())
    with pytest.raises(ValueError, match=r"a\.gguf, b\.gguf"):
        open_checkpoint(tmp_path)


def wide_kinds() -> list[str]:
    kinds = []
    for kind in gguf.GGMLQuantizationType:
        block, size = gguf.GGML_QUANT_SIZES.get(kind, (0, 0))
        try:
            gguf.dequantize(np.zeros((1, size), np.uint8), kind)
        except NotImplementedError:
            continue
        if block > 32:
            kinds.append(kind.name)
    return kinds


@pytest.mark.parametrize("kind", wide_kinds())
def test_wide_blocks_are_read_in_pieces(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convert.checkpoint.CHUNK_BYTES", 5000)
    quant = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[quant]
    raw = np.random.default_rng(0).integers(0, 256, (20, 512 // block * size), np.uint8)
    weights = tiny.tensors()
    del weights["model.embed_tokens.weight"]

    def metadata(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("token_embd.weight", raw, raw_dtype=quant)

    path = tiny.write_gguf(tmp_path / "m.gguf", weights, metadata=metadata)
    with np.errstate(all="ignore"):
        found = open_checkpoint(path).tensor("model.embed_tokens.weight")
        np.testing.assert_array_equal(found, gguf.dequantize(raw, quant))
