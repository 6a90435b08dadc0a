"""From a checkpoint to a tree of device arrays, one array at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from convert.checkpoint import Checkpoint
from paxkv.models.weights import describe, set_leaf, walk

_ALIGNMENT = 64


def check(checkpoint: Checkpoint) -> None:
    """Compare the checkpoint's tensors with the description of its model.

    Raises ValueError listing every missing, surplus or mis-shaped tensor by name.
    """
    wanted = {
        name: spec.source_shape(index)
        for _, spec in walk(describe(checkpoint.config))
        for index, name in enumerate(spec.sources)
    }
    names = set(checkpoint.names())
    problems = [f"missing tensor {name}" for name in wanted if name not in names]
    problems += [f"surplus tensor {name}" for name in sorted(names - wanted.keys())]
    problems += [
        f"tensor {name} has shape {list(checkpoint.shape(name))}, expected {list(shape)}"
        for name, shape in wanted.items()
        if name in names and checkpoint.shape(name) != shape
    ]
    if problems:
        shown = "; ".join(problems[:8])
        more = f"; and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise ValueError(f"the checkpoint does not fit its configuration: {shown}{more}")


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialized array that XLA's CPU backend can adopt without a copy."""
    count = math.prod(shape) * dtype.itemsize
    buffer = np.empty(count + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + count].view(dtype).reshape(shape)


def load_params(
    checkpoint: Checkpoint,
    dtype: Any = "float32",
    put: Callable[[np.ndarray], Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
    vocab_size: int | None = None,
) -> dict[str, Any]:
    """The parameters `describe(checkpoint.config)` describes, each passed through `put`.

    vocab_size: tokens there are, if fewer than the checkpoint has rows for: embedding and head end
    there, so that padding can neither be read nor sampled.
    dtype: the type of every array. put: makes a device array of a host array which is not changed
    afterwards; `jax.device_put` by default. progress: called with (bytes done, bytes in all).
    Host memory holds one array at a time besides what `put` keeps; the largest arrays go first, so
    that a copy made by `put` never comes on top of the whole model.
    Raises ValueError if a tensor is missing, surplus or of the wrong shape.
    """
    if put is None:
        import jax

        put = jax.device_put
    kind = np.dtype(ml_dtypes.bfloat16 if str(dtype) == "bfloat16" else dtype)
    check(checkpoint)
    tree = describe(checkpoint.config)
    leaves = sorted(walk(tree), key=lambda leaf: -math.prod(leaf[1].shape))
    total = sum(math.prod(spec.shape) for _, spec in leaves) * kind.itemsize
    done = 0
    for path, spec in leaves:
        host = _aligned(spec.shape, kind)
        spec.fill(host, checkpoint.read)
        host = host[:vocab_size] if spec.axes[0] == "vocab" else host
        array = put(host) if spec.bits is None else spec.quantize(host)
        if hasattr(array, "block_until_ready"):
            array.block_until_ready()
        set_leaf(tree, path, array)
        done += math.prod(spec.shape) * kind.itemsize
        if progress is not None:
            progress(done, total)
    return tree
