"""How steps with prompts are cut to the sizes of the programs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paxkv.engine.runner.buckets import Buckets, padded
from tests.engine.tiny import greedy, ids
from tests.regressions.engines import bucketed

LIMITS = st.sampled_from([16, 31, 64, 100, 512, 2048, 5000, 8192])


@settings(deadline=None, derandomize=True, database=None, max_examples=300)
@given(LIMITS, st.data())
def test_a_step_advances_prompts_and_costs_less_where_it_is_cut(limit: int, data: st.DataObject):
    sizes = Buckets.choose(min(64, limit), limit).mixed
    decoding = data.draw(st.integers(0, min(64, limit) - 1))
    wanted = data.draw(st.integers(decoding + 1, 2 * limit))
    buckets = Buckets((), sizes, (64,))
    taken = buckets.tokens_of_step(wanted, decoding)
    assert taken in sizes
    assert taken > decoding
    if taken < min(wanted, limit):
        rest = wanted - taken + decoding
        assert taken + padded(sizes, rest) < padded(sizes, wanted)
    else:
        assert taken == padded(sizes, min(wanted, limit))


@pytest.mark.parametrize(
    "length, steps", [(64, [64]), (75, [64, 11]), (96, [64, 32]), (100, [100]), (200, [128, 64, 8])]
)
def test_a_prompt_fills_programs(length: int, steps: list[int]) -> None:
    tiny = bucketed(max_num_batched_tokens=128, max_num_seqs=4, max_model_len=256)
    tiny.tokens(ids(length), greedy(1))
    assert list(tiny.engine.tokens_per_step) == steps


def test_a_prompt_is_whole_without_chunks() -> None:
    tiny = bucketed(
        max_num_batched_tokens=128, max_num_seqs=4, max_model_len=128, enable_chunked_prefill=False
    )
    tiny.tokens(ids(75), greedy(1))
    assert list(tiny.engine.tokens_per_step) == [75]
