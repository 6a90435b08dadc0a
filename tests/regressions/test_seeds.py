"""Bug bank, seeds and children."""

from __future__ import annotations

import numpy as np
import pytest

from paxkv.sampling.sampling_params import SamplingParams
from tests.engine import dense_reference
from tests.engine.tiny import CONFIG, greedy, ids, params
from tests.regressions.engines import CLOSE, assert_idle, bucketed, small, tokens

PROMPT = ids(11)
SEEDED = SamplingParams(seed=42, temperature=0.9, max_tokens=16, ignore_eos=True)
UNSEEDED = SamplingParams(temperature=0.9, max_tokens=16, ignore_eos=True)


def test_bs_03_a_seed_does_not_depend_on_batch_mates() -> None:
    solo = bucketed().tokens(PROMPT, SEEDED)
    s, u = SEEDED, UNSEEDED
    for mix in ([s, u], [u, s], [u, s, u, u]):
        found = bucketed().generate([PROMPT] * len(mix), mix)
        assert tokens(found[mix.index(s)]) == solo
        unseeded = [tuple(tokens(x)) for x, chosen in zip(found, mix) if chosen is u]
        assert len(set(unseeded)) == len(unseeded)
        assert tuple(solo) not in unseeded
    assert len(set(solo)) > 3, "the same sample again and again"


def test_bs_03_child_0_is_n_1_and_all_children_differ() -> None:
    tiny = small()
    solo = tiny.tokens(PROMPT, SEEDED)
    for n in (2, 4, 8):
        many = tiny.generate(
            [PROMPT], SamplingParams(n=n, seed=42, temperature=0.9, max_tokens=16, ignore_eos=True)
        )[0].outputs
        assert many[0].token_ids == solo
        assert [output.index for output in many] == list(range(n))
        assert len({tuple(output.token_ids) for output in many}) == n
    assert_idle(tiny)


def test_bs_03_children_do_not_depend_on_how_many_there_are() -> None:
    tiny = small()

    def children(n: int) -> list[list[int]]:
        chosen = SamplingParams(n=n, seed=3, temperature=1.1, max_tokens=12, ignore_eos=True)
        return [output.token_ids for output in tiny.generate([PROMPT], chosen)[0].outputs]

    assert children(5) == children(8)[:5]


def test_bs_03_every_field_reaches_every_child() -> None:
    tiny = small()
    only = list(range(30, 90))
    output = tiny.generate(
        [PROMPT],
        SamplingParams(
            n=4, temperature=1.5, max_tokens=20, allowed_token_ids=only, ignore_eos=True, logprobs=0
        ),
    )[0]
    for child in output.outputs:
        assert set(child.token_ids) <= set(only)
        assert len(child.logprobs) == 20


def test_greedy_children_are_all_the_greedy_answer() -> None:
    tiny = small()
    for length in (8, 11, 12):
        prompt = ids(length, salt=length)
        alone = tiny.tokens(prompt, greedy(9))
        children = tiny.generate([prompt], greedy(9, n=4))[0].outputs
        assert [child.token_ids for child in children] == [alone] * 4
    assert tiny.engine.stats().cow_copies > 0


def test_children_of_a_penalised_parent_count_for_themselves() -> None:
    tiny = small()
    chosen = SamplingParams(
        seed=1, temperature=0.8, frequency_penalty=1.5, max_tokens=20, ignore_eos=True
    )
    solo = tiny.tokens(PROMPT, chosen)
    many = tiny.generate(
        [PROMPT],
        SamplingParams(
            n=4, seed=1, temperature=0.8, frequency_penalty=1.5, max_tokens=20, ignore_eos=True
        ),
    )[0].outputs
    assert many[0].token_ids == solo


def test_counts_of_a_child_are_those_of_its_own_tokens() -> None:
    tiny = small()
    request = tiny.add(
        PROMPT,
        SamplingParams(
            n=4, seed=1, temperature=0.8, presence_penalty=1.0, max_tokens=20, ignore_eos=True
        ),
    )
    for _ in range(9):
        tiny.engine.step()
    counts = tiny.engine.runner._counts
    for child in request.sequences:
        assert child.row is not None
        slot = child.row + 1
        known = np.bincount(child.output_token_ids, minlength=CONFIG.vocab_size)
        unseen = np.asarray(counts.output[slot]) - known
        assert unseen.min() == 0
        assert unseen.sum() == child.in_flight
        assert set(np.flatnonzero(counts.prompt[slot]).tolist()) == set(PROMPT)
    tiny.run()


def test_best_of_ranks_by_cumulative_logprob() -> None:
    tiny = small()
    fields = {"seed": 9, "temperature": 1.3, "max_tokens": 10, "ignore_eos": True, "logprobs": 0}
    every = tiny.generate([PROMPT], SamplingParams(n=6, **fields))[0].outputs
    best = tiny.generate([PROMPT], SamplingParams(n=2, best_of=6, **fields))[0].outputs
    ranked = sorted(every, key=lambda output: -output.cumulative_logprob)
    assert [output.token_ids for output in best] == [output.token_ids for output in ranked[:2]]
    assert [output.index for output in best] == [0, 1]
    for output in every:
        rows = dense_reference.logprobs(params(), CONFIG, PROMPT + output.token_ids)
        true = sum(rows[len(PROMPT) - 1 + at, token] for at, token in enumerate(output.token_ids))
        assert output.cumulative_logprob == pytest.approx(true, abs=CLOSE)
        chosen = [entry[token].logprob for entry, token in zip(output.logprobs, output.token_ids)]
        assert np.sum(chosen) == pytest.approx(output.cumulative_logprob, abs=1e-4)


def test_unseeded_requests_follow_the_engines_seed() -> None:
    first = [tokens(output) for output in small(seed=5).generate([PROMPT] * 2, UNSEEDED)]
    again = [tokens(output) for output in small(seed=5).generate([PROMPT] * 2, UNSEEDED)]
    other = [tokens(output) for output in small(seed=77).generate([PROMPT] * 2, UNSEEDED)]
    assert first == again
    assert first != other
