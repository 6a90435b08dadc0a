"""The gated MLP."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from paxkv.models.config import ModelConfig
from paxkv.models.linear import linear

Array = jax.Array

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu_pytorch_tanh": partial(jax.nn.gelu, approximate=True),
}


def mlp(layer: dict[str, Array], h: Array, config: ModelConfig) -> Array:
    """`down(activation(gate(h)) * up(h))` of `[hidden_size, num_tokens]`."""
    gate, up = jnp.split(linear(layer["gate_up"], h, layer.get("gate_up_bias")), 2)
    activation = ACTIVATIONS[config.hidden_act]
    return linear(layer["down"], activation(gate) * up, layer.get("down_bias"))
