"""A sequence gets the same bits whatever else is in the batch: split keys, prompts, cascade.

Within one program, that is, for the same shapes. XLA's walk over the keys goes by fixed numbers of
work items, which may belong to any sequence, so by default it promises this only for sequences of
one item; with one item at a time for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import cascade_attention, ragged_paged_attention, triton, xla
from pallas_kernels.lab.battery import Case, Problem, build

DECODE = Case(
    "decode",
    ((1, 700), (1, 1), (1, 513), (1, 64), (1, 129), (1, 300), (1, 16), (1, 577)),
    heads=9,
    kv_heads=3,
)
MIXED = Case(
    "mixed", ((1, 700), (9, 9), (19, 300), (1, 65), (0, 0), (40, 129)), padding=2, sinks=True
)
SHARED = Case(
    "shared prefix",
    ((1, 513), (1, 900), (3, 600), (1, 577), (0, 0), (1, 530)),
    padding=2,
    shared=512,
    heads=9,
    kv_heads=3,
)
SPLIT = triton.Config(triton.Tile(16, 16, splits=4), triton.Tile(32, 32, splits=1))
SPLIT_PROMPTS = triton.Config(triton.Tile(16, 32, splits=8), triton.Tile(32, 16, splits=2))
ONE_BY_ONE = xla.Config(query_tile=16, chunk_tokens=64, items=1)


@cache
def attention(backend: str, config: Any) -> Any:
    return jax.jit(
        partial(ragged_paged_attention, backend=backend, config=config, return_lse=True),
        static_argnames=("scale", "window", "softcap"),
    )


@cache
def cascade(config: Any) -> Any:
    return jax.jit(
        partial(cascade_attention, backend="triton", config=config, return_lse=True),
        static_argnames=("scale", "softcap"),
    )


def composed(problem: Problem, rows: Sequence[int]) -> dict[str, jax.Array]:
    """The call with these sequences only, in this order; the same shapes, the rest is poison."""
    given = problem.arguments
    num_seqs, starts = len(given["kv_lens"]), given["query_start"]
    tables = np.full_like(given["block_tables"], given["block_tables"][0, -1])
    lengths, q, ends = np.zeros_like(given["kv_lens"]), np.full_like(given["q"], np.nan), [0]
    for place, row in enumerate(rows):
        count = starts[row + 1] - starts[row]
        tables[place], lengths[place] = given["block_tables"][row], given["kv_lens"][row]
        q[ends[-1] : ends[-1] + count] = given["q"][starts[row] : starts[row + 1]]
        ends.append(ends[-1] + count)
    ends += [ends[-1]] * (num_seqs + 1 - len(ends))
    arrays = given | {"block_tables": tables, "kv_lens": lengths, "q": q}
    arrays["query_start"] = np.array(ends, np.int32)
    return {name: jnp.asarray(x) for name, x in arrays.items()}


def assert_same_bits(attend: Any, case: Case, **options: Any) -> None:
    """Alone, in other places, in another order, beside some of the others."""
    problem = build(case)
    options |= {name: x for name, x in problem.options.items() if x is not None}
    starts = problem.arguments["query_start"]
    every = list(range(len(case.lengths)))
    empty = [row for row in every if not case.lengths[row][0]]
    whole = [np.asarray(x) for x in attend(**composed(problem, every), **options)]
    orders = [every[::-1], every[::2], every[1::2], *([*empty, row] for row in every)]
    for rows in orders:
        found = [np.asarray(x) for x in attend(**composed(problem, rows), **options)]
        start = 0
        for row in rows:
            count = starts[row + 1] - starts[row]
            for mine, want in zip(found, whole):
                np.testing.assert_array_equal(
                    mine[start : start + count],
                    want[starts[row] : starts[row + 1]],
                    err_msg=f"sequence {row} of {rows}",
                )
            start += count


@pytest.mark.parametrize(
    ("case", "config"),
    [
        (DECODE, SPLIT),
        (replace(DECODE, name="decode, int8, window", page_dtype="int8", window=300), SPLIT),
        (MIXED, SPLIT_PROMPTS),
        pytest.param(
            replace(MIXED, name="mixed, bfloat16", softcap=2.0, window=200, dtype="bfloat16"),
            None,
            marks=pytest.mark.full,
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_triton_gives_a_sequence_the_same_bits(case: Case, config: Any) -> None:
    assert_same_bits(attention("triton", config), case)


@pytest.mark.parametrize("case", [DECODE, MIXED], ids=lambda case: case.name)
def test_xla_one_by_one_gives_a_sequence_the_same_bits(case: Case) -> None:
    assert_same_bits(attention("xla", ONE_BY_ONE), case)


@pytest.mark.parametrize("case", [DECODE, MIXED], ids=lambda case: case.name)
def test_xla_by_default_does_so_for_sequences_of_one_item(case: Case) -> None:
    short = tuple((min(count, 64), min(length, 64)) for count, length in case.lengths)
    assert_same_bits(attention("xla", None), replace(case, lengths=short))


def test_cascade_gives_the_same_bits_for_the_same_boundary() -> None:
    for shared_len in (512, 256, 0):
        assert_same_bits(cascade(SPLIT_PROMPTS), SHARED, shared_len=shared_len)


@pytest.mark.parametrize(
    "config", [pytest.param(None, marks=pytest.mark.full), SPLIT_PROMPTS], ids=["default", "split"]
)
def test_cascade_at_another_boundary_differs_by_rounding(config: Any) -> None:
    problem = build(SHARED)
    given = composed(problem, range(len(SHARED.lengths)))
    plain, plain_lse = attention("triton", config)(**given)
    found = {n: cascade(config)(**given, shared_len=n) for n in (0, 16, 256, 496, 512)}
    for out, lse in found.values():
        np.testing.assert_allclose(out, plain, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(lse, plain_lse, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(out, problem.out, rtol=1e-5, atol=1e-5)
    assert (np.asarray(found[512][0]) != np.asarray(found[256][0])).any(), "a boundary that is data"
