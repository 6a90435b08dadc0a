"""One description per parameter array, from which loading, checking, initialising and sharding follow."""

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


def _array(axes: tuple[str, ...], *tail: int, init: str = "normal", **sources: int) -> ArraySpec:
    return ArraySpec(
        shape=(sum(sources.values()), *tail),
        axes=axes,
        sources=tuple(sources),
        source_rows=tuple(sources.values()),
        init=init,
    )


def _layer(config: ModelConfig, index: int) -> Tree:
    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.q_size, config.kv_size
    prefix = f"model.layers.{index}."
    attn, mlp = prefix + "self_attn.", prefix + "mlp."

    def named(base: str, kind: str, **rows: int) -> dict[str, int]:
        return {f"{base}{name}_proj.{kind}": count for name, count in rows.items()}

    layer = {
        "attn_norm": _array(
            ("hidden",), init="scale", **{prefix + "input_layernorm.weight": hidden}
        ),
        "qkv": _array(("qkv", "hidden"), hidden, **named(attn, "weight", q=q, k=kv, v=kv)),
        "o": _array(("hidden", "heads"), q, **named(attn, "weight", o=hidden)),
        "mlp_norm": _array(
            ("hidden",), init="scale", **{prefix + "post_attention_layernorm.weight": hidden}
        ),
        "gate_up": _array(("mlp", "hidden"), hidden, **named(mlp, "weight", gate=inner, up=inner)),
        "down": _array(("hidden", "mlp"), inner, **named(mlp, "weight", down=hidden)),
    }
    if config.attention_bias:
        layer["qkv_bias"] = _array(("qkv",), **named(attn, "bias", q=q, k=kv, v=kv))
        layer["o_bias"] = _array(("hidden",), **named(attn, "bias", o=hidden))
    if config.mlp_bias:
        layer["gate_up_bias"] = _array(("mlp",), **named(mlp, "bias", gate=inner, up=inner))
        layer["down_bias"] = _array(("hidden",), **named(mlp, "bias", down=hidden))
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
        "embed": _array(("vocab", "hidden"), hidden, **{"model.embed_tokens.weight": vocab}),
        "layers": [_layer(config, index) for index in range(config.num_layers)],
        "norm": _array(("hidden",), init="scale", **{"model.norm.weight": hidden}),
    }
    if not config.tie_word_embeddings:
        tree["head"] = _array(("vocab", "hidden"), hidden, **{"lm_head.weight": vocab})
    return tree


def walk(tree: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every leaf of a tree of dicts and lists with its path, in the tree's order."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from walk(value, (*path, key))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from walk(value, (*path, index))
    else:
        yield path, tree


def plant(tree: Any, path: tuple[str | int, ...], leaf: Any) -> None:
    """Replace the leaf of `tree` at `path` in place."""
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = leaf


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
        plant(tree, path, (array + (spec.init == "scale")).astype(dtype))
    return tree
