"""Copy rate, matmul peak, and attention against both."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gpu_check.sizes import MOST_BYTES, Sizes
from pallas_kernels import ragged_paged_attention
from pallas_kernels.lab.bench import Step, bench
from pallas_kernels.lab.clock import copies_for, measure

# JAX's own kernel is timed in the first cells only.
_CELLS_OF_PEERS = 3


def device(sizes: Sizes) -> dict[str, Any]:
    """Bytes/s read plus written by a copy, FLOP/s of a bfloat16 product with float32 sums."""
    found = jax.local_devices()[0]
    count = sizes.copy_bytes // 2
    array = jnp.ones(count, jnp.bfloat16)
    # One more than it was: XLA cannot leave the copy out.
    copied = measure(jax.jit(lambda x: x + jnp.bfloat16(1)), [{"x": array}])
    n = sizes.matmul
    matrix = jnp.ones((n, n), jnp.bfloat16)
    product = measure(
        jax.jit(lambda x: jnp.dot(x, x, preferred_element_type=jnp.float32).astype(x.dtype)),
        [{"x": matrix}],
    )
    return {
        "kind": found.device_kind,
        "platform": found.platform,
        "jax": jax.__version__,
        "clock": copied.clock,
        "copy_bytes_per_second": 2 * array.nbytes / copied.seconds,
        "matmul_flops_per_second": 2 * n**3 / product.seconds,
    }


def decode(sizes: Sizes, copy_rate: float, deadline: float) -> Iterator[dict[str, Any]]:
    """A row for each cell: bytes/s of each implementation, share of the copy rate."""
    for index, (batch, context) in enumerate(sizes.cells):
        step = _step(sizes, batch, context)
        row: dict[str, Any] = {"batch": batch, "context": context, "bytes": step.bytes}
        if step.page_bytes > MOST_BYTES:
            yield row | {"skipped": "above 32 GiB"}
            continue
        if time.monotonic() > deadline:
            yield row | {"skipped": "out of time"}
            continue
        yield row | _timed(step, copy_rate, peers=index < _CELLS_OF_PEERS)


def _step(sizes: Sizes, batch: int, context: int, new: int = 1) -> Step:
    return Step(
        batch=batch,
        context=context,
        new=new,
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        page_size=sizes.page_size,
    )


def _timed(step: Step, copy_rate: float, peers: bool) -> dict[str, Any]:
    if peers:
        found = {}
        for entry in bench(step):
            seconds = None if entry.timing is None else entry.timing.seconds
            found[entry.name] = {"seconds": seconds, "note": entry.note}
        best = _chosen(found)
    else:
        inputs = [step.arrays(seed) for seed in range(copies_for(step.page_bytes))]
        attend = jax.jit(partial(ragged_paged_attention, backend="auto"))
        found, best = {}, measure(attend, inputs).seconds
        found["auto"] = {"seconds": best, "note": ""}
    rate = step.bytes / best
    return {"seconds": best, "share_of_copy": rate / copy_rate, "implementations": found}


def _chosen(found: dict[str, dict[str, Any]]) -> float:
    """Seconds of what `backend="auto"` takes: the first back end that took the step."""
    return next(x["seconds"] for x in found.values() if x["seconds"] is not None)


def prefill(sizes: Sizes, peak: float, deadline: float) -> Iterator[dict[str, Any]]:
    """A row for each prompt batch: FLOP/s of the causal pairs, share of the matmul peak."""
    for batch, tokens in sizes.prefills:
        step = _step(sizes, batch, tokens, new=tokens)
        row = {"batch": batch, "tokens": tokens, "flops": step.flops}
        if time.monotonic() > deadline:
            yield row | {"skipped": "out of time"}
            continue
        inputs = [step.arrays(seed) for seed in range(2)]
        attend = jax.jit(partial(ragged_paged_attention, backend="auto"))
        seconds = measure(attend, inputs).seconds
        yield row | {"seconds": seconds, "share_of_peak": step.flops / seconds / peak}
