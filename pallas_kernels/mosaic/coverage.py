"""Coverage of the Mosaic GPU kernel: calls that it declines."""

from __future__ import annotations

import jax
import numpy as np

from pallas_kernels.dispatch import Call
from pallas_kernels.mosaic.tuning import ROWS, Config, copied_rows, shared_memory

HEAD_DIMS = (64, 80, 96, 128)
DTYPES = ("bfloat16", "float16")
# Bytes that a program of sm_90 may have.
MOST_SHARED_MEMORY = 232_448


def check(call: Call) -> None:
    """Raise NotImplementedError, with a sentence, for a call that the kernel does not cover."""
    if jax.__version_info__ < (0, 11):
        raise NotImplementedError(f"the kernel needs jax 0.11 or newer, this is {jax.__version__}")
    if call.target not in ("cpu", "cuda"):
        raise NotImplementedError(f"the kernel is for NVIDIA GPUs, not for {call.target}")
    if call.target == "cuda" and call.capability and call.capability // 10 != 9:
        raise NotImplementedError(
            f"the kernel needs compute capability 9.0, the device has {call.capability / 10}"
        )
    dtype, page_dtype = np.dtype(call.dtype).name, np.dtype(call.page_dtype).name
    if dtype not in DTYPES:
        raise NotImplementedError(
            f"queries are {dtype}, which wgmma does not multiply; covered are {', '.join(DTYPES)}"
        )
    if page_dtype != dtype or call.quantized:
        raise NotImplementedError(
            f"pages are {page_dtype}; covered are pages of the queries' dtype"
        )
    if call.head_dim not in HEAD_DIMS:
        covered = ", ".join(map(str, HEAD_DIMS))
        raise NotImplementedError(f"head_dim is {call.head_dim}; covered are {covered}")
    if call.group > ROWS:
        raise NotImplementedError(
            f"{call.group} query heads share a key head; covered are up to {ROWS}"
        )
    config = call.config or Config.choose(call)
    for tile in (config.decode, config.prefill):
        if copied_rows(tile, call.page_size) is None:
            raise NotImplementedError(
                f"page_size is {call.page_size}; covered are multiples of 8 that divide "
                f"{tile.keys}, and multiples of it"
            )
        needed = shared_memory(tile, call.head_dim)
        if needed > MOST_SHARED_MEMORY:
            raise NotImplementedError(
                f"{tile} needs {needed} bytes of shared memory, there are {MOST_SHARED_MEMORY}"
            )
