"""Arrays whose tensors a checkpoint stores in another way than they are kept."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

import convert.load
from convert import load_params
from pallas_kernels import QuantizedWeight, quantize_weight
from paxkv.models.linear import linear
from paxkv.models.weights import ArraySpec, Interleaving, describe
from tests.engine.tiny import CONFIG

RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def filled(spec: ArraySpec, stored: dict[str, np.ndarray]) -> np.ndarray:
    array = np.full(spec.shape, np.nan, np.float32)

    def read(name: str, out: np.ndarray) -> None:
        assert out.shape == stored[name].shape
        out[...] = stored[name]

    for index, name in enumerate(spec.sources):
        assert spec.source_shape(index) == stored[name].shape
    spec.fill(array, read)
    return array


def test_transposed_sources_of_conv1d() -> None:
    spec = ArraySpec((10, 4), ("qkv", "hidden"), ("a", "b"), (6, 4), transposed=True)
    stored = {"a": normal(4, 6), "b": normal(4, 4)}
    want = np.concatenate([stored["a"].T, stored["b"].T])
    np.testing.assert_array_equal(filled(spec, stored), want)


def test_interleaved_rows_of_gpt_neox() -> None:
    heads, dim = 3, 2
    spec = ArraySpec(
        (18, 4), ("qkv", "hidden"), ("qkv",), (18,), interleaved=Interleaving(heads, (1, 1, 1))
    )
    q, k, v = (normal(heads, dim, 4) for _ in range(3))
    stored = np.stack([q, k, v], axis=1).reshape(18, 4)
    want = np.concatenate([part.reshape(-1, 4) for part in (q, k, v)])
    np.testing.assert_array_equal(filled(spec, {"qkv": stored}), want)
    bias = dataclasses.replace(spec, shape=(18,), axes=("qkv",))
    np.testing.assert_array_equal(filled(bias, {"qkv": stored[:, 0]}), want[:, 0])


def test_interleaved_rows_of_grouped_queries() -> None:
    key_heads, group, dim = 2, 3, 2
    q, k, v = normal(key_heads, group, dim, 4), normal(key_heads, dim, 4), normal(key_heads, dim, 4)
    stored = np.concatenate([q, k[:, None], v[:, None]], axis=1).reshape(-1, 4)
    rows = len(stored)
    mixed = Interleaving(key_heads, (group, 1, 1))
    spec = ArraySpec((rows, 4), ("qkv", "hidden"), ("x",), (rows,), interleaved=mixed)
    want = np.concatenate([part.reshape(-1, 4) for part in (q, k, v)])
    np.testing.assert_array_equal(filled(spec, {"x": stored}), want)


def test_experts_and_scanned_layers_are_stacked() -> None:
    sources = tuple(f"{e}.{part}" for e in range(3) for part in ("gate", "up"))
    stored = {name: normal(5 if "gate" in name else 2, 4) for name in sources}
    spec = ArraySpec((3, 7, 4), ("expert", "mlp", "hidden"), sources, (5, 2) * 3, stacked=1)
    want = [np.concatenate([stored[f"{e}.gate"], stored[f"{e}.up"]]) for e in range(3)]
    np.testing.assert_array_equal(filled(spec, stored), np.stack(want))
    deep = ArraySpec(
        (2, 3, 7, 4),
        ("layer", "expert", "mlp", "hidden"),
        tuple(f"{layer}.{name}" for layer in range(2) for name in sources),
        (5, 2) * 6,
        stacked=2,
    )
    twice = {f"{layer}.{name}": x + layer for layer in range(2) for name, x in stored.items()}
    np.testing.assert_array_equal(filled(deep, twice), np.stack([want, np.stack(want) + 1]))


@pytest.mark.parametrize(("bits", "group"), [(4, 8), (8, -1)])
def test_a_quantized_leaf_is_loaded_and_multiplied(
    monkeypatch: pytest.MonkeyPatch, bits: int, group: int
) -> None:
    plain = describe(CONFIG)
    stored = {
        name: normal(*spec.source_shape(index))
        for spec in jax.tree.leaves(plain, is_leaf=lambda leaf: isinstance(leaf, ArraySpec))
        for index, name in enumerate(spec.sources)
    }
    tree = describe(CONFIG)
    tree["layers"][0]["qkv"] = dataclasses.replace(tree["layers"][0]["qkv"], bits=bits, group=group)
    monkeypatch.setattr(convert.load, "describe", lambda config: tree_copy(tree))

    class Stored:
        config = CONFIG

        def names(self) -> list[str]:
            return list(stored)

        def shape(self, name: str) -> tuple[int, ...]:
            return stored[name].shape

        def read(self, name: str, out: np.ndarray) -> None:
            out[...] = stored[name]

    params = load_params(Stored())  # type: ignore[arg-type]
    weight = params["layers"][0]["qkv"]
    assert isinstance(weight, QuantizedWeight)
    abstract = tree["layers"][0]["qkv"].abstract("float32")
    found = jax.tree.map(lambda x: (x.shape, str(x.dtype)), weight)
    assert found == jax.tree.map(lambda x: (x.shape, str(x.dtype)), abstract)
    matrix = np.concatenate(
        [stored[f"model.layers.0.self_attn.{name}_proj.weight"] for name in "qkv"]
    )
    want = quantize_weight(matrix, bits=bits, group=group)
    x, bias = normal(matrix.shape[1], 3), normal(len(matrix))
    np.testing.assert_allclose(
        linear(weight, x, bias), want.dequantize() @ x + bias[:, None], rtol=1e-4, atol=1e-4
    )
    dense = linear(params["layers"][1]["qkv"], x)
    assert dense.shape == (len(matrix), 3)


def tree_copy(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf, tree, is_leaf=lambda leaf: isinstance(leaf, ArraySpec))
