"""Coverage of the Triton kernels: calls that they decline."""

from __future__ import annotations

import numpy as np

from pallas_kernels.dispatch import Call

_DTYPES = ("float32", "bfloat16", "float16")
_PAGE_DTYPES = (*_DTYPES, "int8", "float8_e4m3fn", "float8_e5m2")


def check(call: Call) -> None:
    """Raise NotImplementedError, with a sentence, for a call that the kernels do not cover."""
    if call.target not in ("cpu", "cuda"):
        raise NotImplementedError(f"the kernels are for NVIDIA GPUs, not for {call.target}")
    if call.target == "cuda" and 0 < call.capability < 80:
        raise NotImplementedError(
            f"the kernels need compute capability 8.0, the device has {call.capability / 10}"
        )
    dtype, page_dtype = np.dtype(call.dtype).name, np.dtype(call.page_dtype).name
    if dtype not in _DTYPES:
        raise NotImplementedError(f"queries are {dtype}; covered are {', '.join(_DTYPES)}")
    if page_dtype not in _PAGE_DTYPES:
        raise NotImplementedError(f"pages are {page_dtype}; covered are {', '.join(_PAGE_DTYPES)}")
    if page_dtype == "float8_e4m3fn" and 0 < call.capability < 89:
        raise NotImplementedError(
            "float8_e4m3fn needs compute capability 8.9, "
            f"the device has {call.capability / 10}; int8 works"
        )
    if call.head_dim > 256:
        raise NotImplementedError(f"head_dim is {call.head_dim}; covered are up to 256")
    if call.group > 64:
        raise NotImplementedError(
            f"{call.group} query heads share a key head; covered are up to 64"
        )
    size = call.num_pages * call.num_kv_heads * call.page_size * call.head_dim
    itemsize = np.dtype(call.page_dtype).itemsize
    # Pallas' lowering changes to 64-bit offsets by bytes (above 4 GiB) but counts elements.
    if size > 2**31 and size * itemsize <= 2**32:
        raise NotImplementedError(
            f"a page array of {size} one-byte elements lies between 2 and 4 GiB, where Pallas' "
            "Triton lowering computes offsets in 32 bits; use fewer or many more pages"
        )
