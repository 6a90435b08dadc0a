"""Every back end against the oracle: `pallas_kernels.lab.battery`, in interpret mode on a CPU."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pallas_kernels import ragged_paged_attention, xla
from pallas_kernels.contract import AttentionInputs, AttentionOptions, KVLayout
from pallas_kernels.lab.battery import CASES, MORE_CASES, PROPERTIES, check

BACK_ENDS = ["xla", "triton"]


@lru_cache
def attention(backend: str) -> Any:
    # Compiled as one program: op by op, as many compilations as operations.
    return jax.jit(
        partial(ragged_paged_attention, backend=backend),
        static_argnames=("scale", "window", "softcap", "return_lse", "config"),
    )


@pytest.mark.parametrize("backend", BACK_ENDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_against_float64(case, backend):
    check(attention(backend), case)


@pytest.mark.full
@pytest.mark.parametrize("backend", BACK_ENDS)
@pytest.mark.parametrize("case", MORE_CASES, ids=lambda case: case.name)
def test_more_against_float64(case, backend):
    check(attention(backend), case)


@pytest.mark.parametrize("backend", BACK_ENDS)
@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda holds: holds.__name__)
def test_property(holds, backend):
    holds(attention(backend))


def transposed_keys(*, scale=None, window=None, softcap=None, return_lse=False, **arrays):
    """The XLA path with the keys as the engine lays them out on a CPU."""
    inputs = AttentionInputs(**arrays)
    inputs = inputs._replace(k_pages=jnp.swapaxes(inputs.k_pages, 2, 3))
    scale = inputs.q.shape[-1] ** -0.5 if scale is None else scale
    layout = KVLayout(transposed_keys=True)
    options = AttentionOptions(scale, window, softcap, return_lse, layout=layout)
    return xla.attention(inputs, options)


@pytest.mark.parametrize("case", [*CASES[:2], CASES[-2]], ids=lambda case: case.name)
def test_keys_by_dim_are_the_same_keys(case):
    check(
        jax.jit(transposed_keys, static_argnames=("scale", "window", "softcap", "return_lse")), case
    )
