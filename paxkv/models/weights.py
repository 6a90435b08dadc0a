"""One description per parameter array: loading, checking, initialising and sharding follow it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paxkv.models.config import ModelConfig

Tree = dict[str, Any]


@dataclass(frozen=True)
class ArraySpec:
    """One parameter array.

    shape: element counts, in Hugging Face's [out, in] orientation, contracted on the last axis.
    axes: logical name of each dimension, for sharding rules.
    sources: canonical Hugging Face tensor names, concatenated along axis 0.
    source_rows: how many rows (axis 0) each source contributes.
    init: "normal" (zero mean) or "scale" (around one), for `init_params`.
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    sources: tuple[str, ...]
    source_rows: tuple[int, ...]
    init: str = "normal"

    def source_shape(self, index: int) -> tuple[int, ...]:
        """Shape the tensor `sources[index]` must have."""
        return (self.source_rows[index], *self.shape[1:])


def _array(
    axes: tuple[str, ...], rows: dict[str, int], *columns: int, init: str = "normal"
) -> ArraySpec:
    """An array of `rows` (count by source name) and the further dimensions `columns`."""
    return ArraySpec(
        shape=(sum(rows.values()), *columns),
        axes=axes,
        sources=tuple(rows),
        source_rows=tuple(rows.values()),
        init=init,
    )


def _layer(config: ModelConfig, index: int) -> Tree:
    hidden, inner = config.hidden_size, config.intermediate_size
    prefix = f"model.layers.{index}."
    qkv = {"q": config.q_size, "k": config.kv_size, "v": config.kv_size}

    def named(block: str, kind: str, rows: dict[str, int]) -> dict[str, int]:
        return {f"{prefix}{block}.{name}_proj.{kind}": count for name, count in rows.items()}

    def norm(name: str) -> ArraySpec:
        return _array(("hidden",), {f"{prefix}{name}.weight": hidden}, init="scale")

    gate_up = {"gate": inner, "up": inner}
    layer = {
        "attn_norm": norm("input_layernorm"),
        "qkv": _array(("qkv", "hidden"), named("self_attn", "weight", qkv), hidden),
        "o": _array(
            ("hidden", "heads"), named("self_attn", "weight", {"o": hidden}), config.q_size
        ),
        "mlp_norm": norm("post_attention_layernorm"),
        "gate_up": _array(("mlp", "hidden"), named("mlp", "weight", gate_up), hidden),
        "down": _array(("hidden", "mlp"), named("mlp", "weight", {"down": hidden}), inner),
    }
    if config.attention_bias:
        layer["qkv_bias"] = _array(("qkv",), named("self_attn", "bias", qkv))
        layer["o_bias"] = _array(("hidden",), named("self_attn", "bias", {"o": hidden}))
    if config.mlp_bias:
        layer["gate_up_bias"] = _array(("mlp",), named("mlp", "bias", gate_up))
        layer["down_bias"] = _array(("hidden",), named("mlp", "bias", {"down": hidden}))
    return layer


def describe(config: ModelConfig) -> Tree:
    """Tree of `ArraySpec`, the structure of the parameters of `config`'s decoder.

    {"embed": [vocab, hidden], "layers": [{"attn_norm": [hidden], "qkv": [q + 2 kv, hidden],
    "o": [hidden, q], "mlp_norm": [hidden], "gate_up": [2 mlp, hidden], "down": [hidden, mlp]}],
    "norm": [hidden], "head": [vocab, hidden]}; "head" only without tied embeddings, "qkv_bias",
    "o_bias", "gate_up_bias" and "down_bias" only where the configuration has them.
    """
    vocab, hidden = config.vocab_size, config.hidden_size
    tree: Tree = {
        "embed": _array(("vocab", "hidden"), {"model.embed_tokens.weight": vocab}, hidden),
        "layers": [_layer(config, index) for index in range(config.num_layers)],
        "norm": _array(("hidden",), {"model.norm.weight": hidden}, init="scale"),
    }
    if not config.tie_word_embeddings:
        tree["head"] = _array(("vocab", "hidden"), {"lm_head.weight": vocab}, hidden)
    return tree


def walk(
    tree: Any, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every leaf of a tree of dicts and lists with its path, in the tree's order."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from walk(value, (*path, key))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from walk(value, (*path, index))
    else:
        yield path, tree


def set_leaf(tree: Any, path: tuple[str | int, ...], leaf: Any) -> None:
    """Replace the leaf of `tree` at `path` in place."""
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = leaf


def abstract_params(config: ModelConfig, dtype: Any) -> Tree:
    """The parameters of `config` as `jax.ShapeDtypeStruct`: shapes and one type, no content."""
    import jax

    tree = describe(config)
    for path, spec in list(walk(tree)):
        set_leaf(tree, path, jax.ShapeDtypeStruct(spec.shape, dtype))
    return tree


def init_params(config: ModelConfig, key: Any, dtype: Any = "float32", scale: float = 0.02) -> Tree:
    """Random parameters with the structure of `describe(config)`, for tests and benchmarks.

    key: a JAX PRNG key. Weights and biases are normal with standard deviation `scale`, norms are
    one plus such noise.
    """
    import jax

    tree = describe(config)
    leaves = list(walk(tree))
    for (path, spec), leaf_key in zip(leaves, jax.random.split(key, len(leaves)), strict=True):
        array = scale * jax.random.normal(leaf_key, spec.shape, "float32")
        set_leaf(tree, path, (array + float(spec.init == "scale")).astype(dtype))
    return tree
