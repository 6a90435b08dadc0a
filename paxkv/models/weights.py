"""One description per parameter array: loading, checking, initialization and sharding follow it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from paxkv.models.config import ModelConfig
from paxkv.models.families.registry import family_of

Tree = dict[str, Any]


@dataclass(frozen=True)
class Interleaving:
    """Rows of several parts that a checkpoint stores group by group.

    GPT-NeoX keeps query, key and value of one head together, then those of the next: `num_heads`
    groups of parts (1, 1, 1). With grouped queries there is a group for each key head, of parts
    (num_heads / num_kv_heads, 1, 1).

    Attributes:
        groups: how many.
        parts: for each part, how many equal runs of rows a group has of it.
    """

    groups: int
    parts: tuple[int, ...]

    def order(self, rows: int) -> np.ndarray:
        """Indices of the stored rows, all those of the first part before those of the next."""
        runs = np.arange(rows).reshape(self.groups, sum(self.parts), -1)
        ends = np.cumsum(self.parts)[:-1]
        return np.concatenate([part.reshape(-1) for part in np.split(runs, ends, axis=1)])


@dataclass(frozen=True)
class ArraySpec:
    """One parameter array.

    Attributes:
        shape: element counts, in Hugging Face's [out, in] orientation, contracted on the last axis.
        axes: logical name of each dimension, for sharding rules.
        sources: canonical Hugging Face tensor names, concatenated along axis `stacked`.
        source_rows: how many rows each source contributes.
        init: "normal" (zero mean) or "scale" (around one), for `init_params`.
        stacked: leading axes that have sources of their own for each index, in order: experts, or
            layers for `lax.scan`. Rows are those of the axis after them.
        transposed: whether the sources are stored [in, out], as `Conv1D` keeps them.
        interleaved: how the rows of each source are mixed, if they are.
        bits: 4 or 8 for a matrix that is kept as a `QuantizedWeight`.
        group: inputs that then share a scale; -1 for a whole row.
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    sources: tuple[str, ...]
    source_rows: tuple[int, ...]
    init: str = "normal"
    stacked: int = 0
    transposed: bool = False
    interleaved: Interleaving | None = None
    bits: int | None = None
    group: int = 128

    def source_shape(self, index: int) -> tuple[int, ...]:
        """Shape the tensor `sources[index]` must have."""
        shape = (self.source_rows[index], *self.shape[self.stacked + 1 :])
        return shape[::-1] if self.transposed else shape

    def fill(self, array: np.ndarray, read: Callable[[str, np.ndarray], None]) -> None:
        """Write the sources into `array`, of this shape and contiguous.

        read: writes the tensor of a name into an array of its shape.
        """
        entries = array.reshape(-1, *self.shape[self.stacked :])
        entry = row = 0
        for index, (name, rows) in enumerate(zip(self.sources, self.source_rows, strict=True)):
            target = entries[entry, row : row + rows]
            if self.transposed or self.interleaved is not None:
                stored = np.empty(self.source_shape(index), array.dtype)
                read(name, stored)
                stored = stored.T if self.transposed else stored
                mixed = self.interleaved
                target[:] = stored if mixed is None else stored[mixed.order(rows)]
            else:
                read(name, target)
            row += rows
            if row == entries.shape[1]:
                entry, row = entry + 1, 0

    def quantize(self, matrix: np.ndarray) -> Any:
        """The `QuantizedWeight` of a matrix that is kept as one."""
        from pallas_kernels import quantize_weight

        assert self.bits is not None
        return quantize_weight(matrix, bits=self.bits, group=self.group)

    def abstract(self, dtype: Any) -> Any:
        """`jax.ShapeDtypeStruct`s of what is kept; `dtype` is that of dense arrays."""
        import jax

        if self.bits is None:
            return jax.ShapeDtypeStruct(self.shape, dtype)
        from pallas_kernels import QuantizedWeight

        num_out, num_in = self.shape
        scales = num_out, 1 if self.group == -1 else num_in // self.group
        packed: Any = jax.ShapeDtypeStruct((num_out, num_in * self.bits // 8), "uint8")
        scale: Any = jax.ShapeDtypeStruct(scales, "float32")
        zero: Any = jax.ShapeDtypeStruct(scales, "uint8")
        return QuantizedWeight(packed, scale, zero, bits=self.bits)


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


def _norm_init(config: ModelConfig) -> str:
    return "normal" if config.norm_unit_offset else "scale"


def _layer(config: ModelConfig, index: int) -> Tree:
    hidden, inner = config.hidden_size, config.intermediate_size
    names = family_of(config.architecture).layer_names

    def named(kind: str, **rows: int) -> dict[str, int]:
        return {f"model.layers.{index}.{names[name]}.{kind}": count for name, count in rows.items()}

    def norm(name: str, axis: str = "hidden", size: int = hidden) -> ArraySpec:
        return _array((axis,), named("weight", **{name: size}), init=_norm_init(config))

    qkv = {"q": config.q_size, "k": config.kv_size, "v": config.kv_size}
    gate_up = {"gate": inner, "up": inner}
    layer = {
        "attn_norm": norm("attn_norm"),
        "qkv": _array(("qkv", "hidden"), named("weight", **qkv), hidden),
        "o": _array(("hidden", "heads"), named("weight", o=hidden), config.q_size),
        "mlp_norm": norm("mlp_norm"),
        "gate_up": _array(("mlp", "hidden"), named("weight", **gate_up), hidden),
        "down": _array(("hidden", "mlp"), named("weight", down=hidden), inner),
    }
    if config.qk_norm:
        layer["q_norm"] = norm("q_norm", "head_dim", config.head_dim)
        layer["k_norm"] = norm("k_norm", "head_dim", config.head_dim)
    if config.post_norms:
        layer["attn_post_norm"] = norm("attn_post_norm")
        layer["mlp_post_norm"] = norm("mlp_post_norm")
    if config.qkv_bias:
        layer["qkv_bias"] = _array(("qkv",), named("bias", **qkv))
    if config.o_bias:
        layer["o_bias"] = _array(("hidden",), named("bias", o=hidden))
    if config.mlp_bias:
        layer["gate_up_bias"] = _array(("mlp",), named("bias", **gate_up))
        layer["down_bias"] = _array(("hidden",), named("bias", down=hidden))
    return layer


def describe(config: ModelConfig) -> Tree:
    """Tree of `ArraySpec`, the structure of the parameters of `config`'s decoder.

    {"embed": [vocab, hidden], "layers": [{"attn_norm": [hidden], "qkv": [q + 2 kv, hidden],
    "o": [hidden, q], "mlp_norm": [hidden], "gate_up": [2 mlp, hidden], "down": [hidden, mlp]}],
    "norm": [hidden], "head": [vocab, hidden]}; "head" only without tied embeddings, and only where
    the configuration has them "q_norm" and "k_norm" [head_dim], "attn_post_norm" and
    "mlp_post_norm", "qkv_bias", "o_bias", "gate_up_bias" and "down_bias".
    """
    vocab, hidden = config.vocab_size, config.hidden_size
    tree: Tree = {
        "embed": _array(("vocab", "hidden"), {"model.embed_tokens.weight": vocab}, hidden),
        "layers": [_layer(config, index) for index in range(config.num_layers)],
        "norm": _array(("hidden",), {"model.norm.weight": hidden}, init=_norm_init(config)),
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
    tree = describe(config)
    for path, spec in list(walk(tree)):
        set_leaf(tree, path, spec.abstract(dtype))
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
