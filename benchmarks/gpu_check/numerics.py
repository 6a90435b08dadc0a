"""Every kernel against float64, on the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax

from benchmarks.gpu_check.sizes import Sizes
from benchmarks.kernel_traffic.interpreted import checks
from pallas_kernels import ragged_paged_attention
from pallas_kernels.dispatch import BACK_ENDS
from pallas_kernels.lab.battery import CASES, check

_STATIC = ("scale", "window", "softcap", "return_lse")


def numerics(sizes: Sizes, deadline: float) -> Iterator[dict[str, str]]:
    """A row for each kernel and size, and for each case of the battery and back end."""
    for head_dim, page_size in sizes.numerics:
        for found in checks("triton", head_dim, page_size):
            yield _judged(f"{found.kernel} D{head_dim} page{page_size}", found.run, deadline)
    for backend in BACK_ENDS if sizes.battery else ():
        attend = jax.jit(partial(ragged_paged_attention, backend=backend), static_argnames=_STATIC)
        for case in CASES:
            yield _judged(f"{backend}: {case.name}", partial(check, attend, case), deadline)


def _judged(name: str, run: Callable[[], Any], deadline: float) -> dict[str, str]:
    if time.monotonic() > deadline:
        return {"name": name, "verdict": "out of time"}
    try:
        run()
    except NotImplementedError as refusal:
        return {"name": name, "verdict": "declined", "told": str(refusal)}
    except Exception as error:
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        return {"name": name, "verdict": "wrong", "told": " ".join(lines[:4])[:400]}
    return {"name": name, "verdict": "right"}
