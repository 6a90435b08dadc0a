"""A shared prefix read once: same answer as reading it for each sequence."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import cascade_attention
from pallas_kernels.lab.battery import Case, build

DECODE = Case(
    "decode",
    ((1, 65), (1, 90), (0, 0), (1, 70), (1, 81)),
    padding=1,
    shared=64,
    heads=9,
    kv_heads=3,
)
MIXED = Case("mixed", ((1, 65), (6, 70), (0, 0), (19, 90), (1, 65)), padding=3, shared=64)


@lru_cache
def compiled(backend):
    return jax.jit(
        partial(cascade_attention, backend=backend, return_lse=True),
        static_argnames=("scale", "softcap"),
    )


def run(case, shared_len, backend="triton", arguments=None):
    problem = build(case)
    cascade = compiled(backend)
    options = {name: value for name, value in problem.options.items() if name != "window"}
    arrays = {name: jnp.asarray(x) for name, x in (arguments or problem.arguments).items()}
    out, lse = cascade(**arrays, shared_len=shared_len, **options)
    return np.asarray(out), np.asarray(lse), problem


@pytest.mark.parametrize(
    ("case", "backend"),
    [
        (DECODE, "xla"),
        (DECODE, "triton"),
        (replace(MIXED, sinks=True, softcap=2.0), "triton"),
        (replace(DECODE, page_dtype="int8", lengths=((1, 65), (1, 600)), width=40), "triton"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_cascade_is_attention(case, backend):
    out, lse, problem = run(case, 64, backend)
    np.testing.assert_allclose(out, problem.out, rtol=1e-5, atol=4e-6)
    np.testing.assert_allclose(lse, problem.lse, rtol=0, atol=1e-5)


def test_the_boundary_is_data_and_moves_only_rounding():
    whole, _, problem = run(DECODE, 64)
    for shared_len in (0, 16, 48):
        out, _, _ = run(DECODE, shared_len)
        np.testing.assert_allclose(out, problem.out, rtol=1e-5, atol=4e-6)
        np.testing.assert_allclose(out, whole, rtol=1e-5, atol=1e-5)


def test_the_prefix_is_read_through_one_table():
    """The other rows' cells of the prefix may hold anything: nobody reads them."""
    problem = build(DECODE)
    arguments = dict(problem.arguments)
    arguments["block_tables"] = arguments["block_tables"].copy()
    arguments["block_tables"][1:, :4] = arguments["block_tables"][0, -1]
    out, _, _ = run(DECODE, 64, arguments=arguments)
    np.testing.assert_allclose(out, problem.out, rtol=1e-5, atol=4e-6)


def test_batch_mates_change_no_bit():
    out, lse, problem = run(DECODE, 64)
    arguments = dict(problem.arguments)
    # Row 4 alone, in the first row.
    arguments["block_tables"] = np.roll(arguments["block_tables"], 1, axis=0)
    arguments["kv_lens"] = np.array([81, 0, 0, 0, 0], np.int32)
    arguments["query_start"] = np.array([0, 1, 1, 1, 1, 1], np.int32)
    arguments["q"] = np.full_like(arguments["q"], np.nan)
    arguments["q"][0] = problem.arguments["q"][3]
    alone, alone_lse, _ = run(DECODE, 64, arguments=arguments)
    np.testing.assert_array_equal(alone[0], out[3])
    np.testing.assert_array_equal(alone_lse[0], lse[3])
    assert (alone[1:] == 0).all()
