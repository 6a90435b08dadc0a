"""Family: the data that distinguishes one model family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from paxkv.models.config import LayerKind

FULL, SLIDING = "full_attention", "sliding_attention"
# Hugging Face's name of each tensor of a layer, by what the decoder calls it.
LAYER_NAMES: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


class Fields(Protocol):
    """The fields of a config.json or of a GGUF file's metadata, see `convert.fields.Fields`."""

    @property
    def values(self) -> Mapping[str, Any]: ...
    @property
    def integer(self) -> Callable[..., Any]: ...
    @property
    def number(self) -> Callable[..., Any]: ...
    @property
    def flag(self) -> Callable[..., bool]: ...


def window_or(fields: Fields, missing: int | None) -> int | None:
    """`sliding_window`: None where the file says null, `missing` where it says nothing."""
    given: int | None = fields.integer("sliding_window", None)
    return given if "sliding_window" in fields.values else missing


def slides_everywhere(fields: Fields, num_layers: int) -> tuple[int | None, list[str]]:
    """All layers have the window, if there is one."""
    window = fields.integer("sliding_window", None)
    return window, [FULL if window is None else SLIDING] * num_layers


def nothing_more(fields: Fields) -> dict[str, Any]:
    """No fields beyond those that all families have."""
    return {}


def layer_kinds(
    types: Sequence[str], window: int | None, sliding_rope: int = 0
) -> tuple[LayerKind, ...]:
    """The kinds of layers of these types."""
    kinds = {FULL: LayerKind(), SLIDING: LayerKind(window, sliding_rope)}
    return tuple(kinds[kind] for kind in types)


@dataclass(frozen=True)
class Family:
    """A family is data: `convert` reads its checkpoints and the decoder runs it from this alone.

    Attributes:
        name: Hugging Face's `model_type`.
        architectures: Hugging Face's classes whose checkpoints are read.
        layer_names: Hugging Face's names of a layer's tensors, see `LAYER_NAMES`.
        always: fields of `ModelConfig` that are the same in every model.
        defaults: transformers' values of keys that a config.json leaves out.
        activation: the key that names the MLP's activation, and its default.
        obeyed: keys of a config.json beside those obeyed in all families.
        absent: keys that transformers' configuration does not have, and values that say nothing.
        slides: whether transformers obeys a sliding window.
        layers: from a config.json and the number of layers, the window and default `layer_types`.
        from_hf: further fields of `ModelConfig` from a config.json.
        scaled_length: whether `max_position_embeddings` counts what rope scaling adds.
        gguf: llama.cpp's name; None if its files are not read.
        gguf_pairs: whether llama.cpp rotates neighboring rows of queries and keys, not halves.
        gguf_obeyed: keys of the metadata beside those obeyed in all families.
        from_gguf: further fields of `ModelConfig` from the metadata.
    """

    name: str
    architectures: tuple[str, ...]
    layer_names: Mapping[str, str] = field(default_factory=lambda: LAYER_NAMES)
    always: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    activation: tuple[str, str] = ("hidden_act", "silu")
    obeyed: frozenset[str] = frozenset()
    absent: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    slides: bool = True
    layers: Callable[[Fields, int], tuple[int | None, list[str]]] = slides_everywhere
    from_hf: Callable[[Fields], dict[str, Any]] = nothing_more
    scaled_length: bool = False
    gguf: str | None = None
    gguf_pairs: bool = False
    gguf_obeyed: frozenset[str] = frozenset()
    from_gguf: Callable[[Fields], dict[str, Any]] = nothing_more
