"""Bytes of a model on one device: weights, activations, keys and values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from paxkv.engine.config import DTYPES
from paxkv.models.config import ModelConfig
from paxkv.models.weights import describe, walk

BYTES_PER_ELEMENT = {
    "float32": Fraction(4),
    "bfloat16": Fraction(2),
    "float16": Fraction(2),
    "float8_e4m3fn": Fraction(1),
    "float8_e5m2": Fraction(1),
    "int8": Fraction(1),
    "int4": Fraction(1, 2),
}
# Tensor parallelism splits these dimensions; all others are whole on every device.
SPLIT_AXES = {"qkv", "heads", "mlp", "vocab"}


@dataclass(frozen=True)
class ModelBytes:
    """Bytes that a model takes on each of `tensor_parallel_size` devices.

    kv_per_token: keys and values of one token in all layers. weights: without the scales of a
    quantized format. activations: an estimate from the largest arrays that live at one time in
    the largest step; an engine on a device with memory statistics measures instead.
    """

    kv_per_token: int
    weights: int
    activations: int


def element_bytes(name: str, dtype: str) -> Fraction:
    """Bytes per element of a type's name. Raises ValueError naming the option `name`."""
    if dtype not in BYTES_PER_ELEMENT:
        raise ValueError(f"{name}={dtype!r} must be one of {', '.join(BYTES_PER_ELEMENT)}")
    return BYTES_PER_ELEMENT[dtype]


def kv_bytes_per_token(config: ModelConfig, kv_dtype: str, tensor_parallel_size: int = 1) -> int:
    """2 · layers · key-value heads · (head width · bytes, and 4 for the factor of a one-byte type);
    more devices than heads copy heads. kv_dtype: the engine's short names, too.
    """
    heads = math.ceil(config.num_kv_heads / tensor_parallel_size)
    size = element_bytes("kv_cache_dtype", DTYPES.get(kv_dtype, kv_dtype))
    per_head = config.head_dim * size + (4 if size <= 1 else 0)
    return math.ceil(2 * config.num_layers * heads * per_head)


def weight_bytes(config: ModelConfig, dtype: str, tensor_parallel_size: int = 1) -> int:
    """Vectors (norms, biases) keep two bytes at least, whatever the matrices are stored in."""
    size = element_bytes("weights_dtype", dtype)
    total = Fraction(0)
    for _, spec in walk(describe(config)):
        split = tensor_parallel_size if SPLIT_AXES & set(spec.axes) else 1
        per_element = size if len(spec.shape) > 1 else max(size, Fraction(2))
        total += math.ceil(Fraction(math.prod(spec.shape), split)) * per_element
    return math.ceil(total)


def activation_bytes(
    config: ModelConfig,
    dtype: str,
    num_tokens: int,
    num_rows: int,
    tensor_parallel_size: int = 1,
) -> int:
    """The largest step's peak: `num_tokens` computed at once, `num_rows` of logits.

    Per token the residual stream, its normalized copy and the widest inner arrays: either
    queries, keys, values and attention's output, or gate, up and their product. Per row float32
    logits and one copy of them. The two do not live at the same time.
    """
    size = max(element_bytes("weights_dtype", dtype), Fraction(2))
    attention = 2 * config.q_size + 2 * config.kv_size
    inner = Fraction(max(attention, 3 * config.intermediate_size), tensor_parallel_size)
    layers = num_tokens * (2 * config.hidden_size + inner) * size
    logits = Fraction(num_rows * config.vocab_size * 4 * 2)
    return math.ceil(max(layers, logits))


def model_bytes(
    config: ModelConfig,
    weights_dtype: str,
    kv_dtype: str,
    tensor_parallel_size: int,
    num_tokens: int,
    num_rows: int,
) -> ModelBytes:
    """Bytes of a model. Raises ValueError if the heads cannot be split over the devices."""
    if config.num_heads % tensor_parallel_size:
        raise ValueError(
            f"tensor_parallel_size={tensor_parallel_size} must divide num_heads={config.num_heads}"
        )
    key_heads = config.num_kv_heads
    if key_heads % tensor_parallel_size and tensor_parallel_size % key_heads:
        raise ValueError(
            f"tensor_parallel_size={tensor_parallel_size} must divide num_kv_heads={key_heads}, or "
            "be a multiple of it: a key head is never cut"
        )
    return ModelBytes(
        kv_per_token=kv_bytes_per_token(config, kv_dtype, tensor_parallel_size),
        weights=weight_bytes(config, weights_dtype, tensor_parallel_size),
        activations=activation_bytes(
            config, weights_dtype, num_tokens, num_rows, tensor_parallel_size
        ),
    )
