"""Hugging Face directories: which tensors are taken from which file, and what is refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tiny_models as tiny
from safetensors.numpy import load_file, save_file

from convert import load_params, open_checkpoint

NORM = "model.norm.weight"
HEAD = "lm_head.weight"


def host(array: np.ndarray) -> np.ndarray:
    return array


def load(folder: Path, dtype: Any = "float32") -> dict[str, Any]:
    return load_params(open_checkpoint(folder), dtype, put=host)


def assert_loaded(tree: dict[str, Any], weights: dict[str, np.ndarray]) -> None:
    """Every array of the tree against the tensors it is made of."""

    def same(array: np.ndarray, *names: str) -> None:
        np.testing.assert_array_equal(array, np.concatenate([weights[name] for name in names]))

    same(tree["embed"], "model.embed_tokens.weight")
    same(tree["norm"], NORM)
    assert ("head" in tree) == (HEAD in weights)
    if HEAD in weights:
        same(tree["head"], HEAD)
    for index, layer in enumerate(tree["layers"]):
        prefix = f"model.layers.{index}."
        attn, mlp = prefix + "self_attn.", prefix + "mlp."
        same(layer["attn_norm"], prefix + "input_layernorm.weight")
        same(layer["mlp_norm"], prefix + "post_attention_layernorm.weight")
        for kind, end in (("weight", ""), ("bias", "_bias")):
            if kind == "bias" and "qkv_bias" not in layer:
                continue
            same(layer["qkv" + end], *(f"{attn}{name}_proj.{kind}" for name in "qkv"))
            same(layer["o" + end], f"{attn}o_proj.{kind}")
            same(layer["gate_up" + end], f"{mlp}gate_proj.{kind}", f"{mlp}up_proj.{kind}")
            same(layer["down" + end], f"{mlp}down_proj.{kind}")


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_every_tensor_arrives(
    tmp_path: Path, shards: int, tied: bool, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convert.checkpoint.CHUNK_BYTES", 1000)
    weights = tiny.tensors(tied=tied, bias=bias)
    folder = tiny.write_hf(tmp_path, weights, shards=shards, attention_bias=bias, mlp_bias=bias)
    assert_loaded(load(folder), weights)


def test_planted_swap_of_gate_and_up_is_seen(tmp_path: Path) -> None:
    weights = tiny.tensors()
    tree = load(tiny.write_hf(tmp_path, weights))
    half = tiny.INNER
    tree["layers"][1]["gate_up"] = np.roll(tree["layers"][1]["gate_up"], half, axis=0)
    with pytest.raises(AssertionError):
        assert_loaded(tree, weights)


@pytest.mark.parametrize("stored", [np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("wanted", ["float32", "bfloat16", "float16"])
def test_types_are_converted(tmp_path: Path, stored: Any, wanted: str) -> None:
    weights = {name: weight.astype(stored) for name, weight in tiny.tensors().items()}
    folder = tiny.write_hf(tmp_path, weights)
    assert open_checkpoint(folder).dtype == np.dtype(stored)
    target = np.dtype(ml_dtypes.bfloat16 if wanted == "bfloat16" else wanted)
    tree = load(folder, wanted)
    assert tree["embed"].dtype == target
    assert_loaded(tree, {name: weight.astype(target) for name, weight in weights.items()})


def test_jax_arrays_by_default(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    weights = tiny.tensors()
    tree = load_params(open_checkpoint(tiny.write_hf(tmp_path, weights)))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(tree))
    assert_loaded(tree, weights)


@pytest.mark.parametrize("name", [NORM, "model.layers.1.self_attn.k_proj.weight", HEAD])
def test_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    weights = tiny.tensors(tied=False)
    del weights[name]
    folder = tiny.write_hf(tmp_path, weights, tie_word_embeddings=False)
    with pytest.raises(ValueError, match=f"missing tensor {name}"):
        load(folder)


def test_surplus_tensor_is_named(tmp_path: Path) -> None:
    weights = tiny.tensors() | {"model.layers.2.mlp.up_proj.weight": np.ones((2, 2), np.float32)}
    with pytest.raises(ValueError, match=r"surplus tensor model\.layers\.2\.mlp\.up_proj\.weight"):
        load(tiny.write_hf(tmp_path, weights))


def test_recomputed_frequencies_are_no_surplus(tmp_path: Path) -> None:
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    weights = tiny.tensors()
    assert_loaded(load(tiny.write_hf(tmp_path, weights | old)), weights)


def test_misshaped_tensor_is_named(tmp_path: Path) -> None:
    weights = tiny.tensors() | {NORM: np.ones(tiny.HIDDEN + 1, np.float32)}
    with pytest.raises(ValueError, match=rf"{NORM} has shape \[65\], expected \[64\]"):
        load(tiny.write_hf(tmp_path, weights))


def test_stored_copy_of_a_tied_head_is_ignored(tmp_path: Path) -> None:
    weights = tiny.tensors()
    copy = weights | {HEAD: weights["model.embed_tokens.weight"]}
    assert_loaded(load(tiny.write_hf(tmp_path, copy, tie_word_embeddings=True)), weights)


def test_different_head_of_a_tied_model_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = tiny.tensors(tied=False)
    folder = tiny.write_hf(tmp_path, weights, tie_word_embeddings=True)
    with caplog.at_level(logging.WARNING):
        assert_loaded(load(folder), weights)
    assert HEAD in caplog.text


def test_missing_shard_is_named(tmp_path: Path) -> None:
    folder = tiny.write_hf(tmp_path, tiny.tensors(), shards=3)
    (folder / tiny.shard_name(2, 3)).unlink()
    with pytest.raises(ValueError, match=r"00002-of-00003.*is missing"):
        load(folder)


@pytest.mark.parametrize("keep", [5, 40, -100])
def test_truncated_shard_is_named(tmp_path: Path, keep: int) -> None:
    folder = tiny.write_hf(tmp_path, tiny.tensors(), shards=3)
    file = folder / tiny.shard_name(2, 3)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"00002-of-00003.*is truncated"):
        load(folder)


def test_damaged_header_is_named(tmp_path: Path) -> None:
    folder = tiny.write_hf(tmp_path, tiny.tensors())
    file = folder / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[8] = ord("x")
    file.write_bytes(raw)
    with pytest.raises(ValueError, match=r"model\.safetensors has a damaged header"):
        load(folder)


def test_tensor_missing_in_its_shard_is_named(tmp_path: Path) -> None:
    folder = tiny.write_hf(tmp_path, tiny.tensors(), shards=3)
    index = folder / "model.safetensors.index.json"
    file = folder / json.loads(index.read_text())["weight_map"][NORM]
    save_file({key: value for key, value in load_file(file).items() if key != NORM}, file)
    with pytest.raises(ValueError, match=f"{NORM} is missing in .*{file.name}"):
        load(folder)


def test_stray_files_and_unassigned_tensors_are_ignored(tmp_path: Path) -> None:
    weights = tiny.tensors()
    folder = tiny.write_hf(tmp_path, weights, shards=3)
    noise = {name: np.full_like(weight, 9) for name, weight in weights.items()}
    save_file(noise, folder / "consolidated.safetensors")
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    for other in set(index.values()) - {index[NORM]}:
        save_file(load_file(folder / other) | {NORM: noise[NORM]}, folder / other)
    assert_loaded(load(folder), weights)


def test_index_may_only_name_files_beside_it(tmp_path: Path) -> None:
    folder = tiny.write_hf(tmp_path / "a", tiny.tensors(), shards=2)
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace(tiny.shard_name(1, 2), "../x.safetensors"))
    with pytest.raises(ValueError, match=r"'../x.safetensors' is not a plain file name"):
        load(folder)


def test_folders_without_an_index(tmp_path: Path) -> None:
    weights = tiny.tensors()
    folder = tiny.write_hf(tmp_path, weights)
    stray = {name: np.full_like(weight, 9) for name, weight in weights.items()}
    save_file(stray, folder / "other.safetensors")
    assert_loaded(load(folder), weights)
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    with pytest.raises(ValueError, match=r"other\.safetensors, weights\.safetensors"):
        load(folder)
    (folder / "other.safetensors").unlink()
    assert_loaded(load(folder), weights)
    (folder / "weights.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"no safetensors file.*pytorch_model\.bin are never read"):
        load(folder)


def test_integer_tensors_are_refused_by_name(tmp_path: Path) -> None:
    weights: dict[str, np.ndarray] = tiny.tensors()
    name = "model.layers.0.mlp.down_proj.weight"
    weights[name] = weights[name].astype(np.int8)
    with pytest.raises(ValueError, match=f"{name} has type I8; supported: F64, F32, F16, BF16"):
        load(tiny.write_hf(tmp_path, weights))


def test_neither_directory_nor_gguf(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"neither a directory nor a .gguf file"):
        open_checkpoint(tmp_path / "model.pt")
    with pytest.raises(ValueError, match="found: none"):
        open_checkpoint(tmp_path)
