"""The engine with contiguous reservations: the same answers, fewer at once."""

from __future__ import annotations

import pytest

from paxkv.sampling.sampling_params import SamplingParams
from tests.engine.beam_cases import beams
from tests.engine.tiny import Tiny, greedy, ids
from tests.regressions.engines import assert_idle

# Room for three reservations of 40 tokens.
SAME = {"deterministic": True, "max_model_len": 40, "num_gpu_blocks_override": 30}


def test_the_same_answers_with_fewer_requests_at_once() -> None:
    prompts = [ids(5 + k, salt=k) for k in range(12)]
    answers, most, steps = {}, {}, {}
    for allocation in ("paged", "contiguous"):
        tiny = Tiny(**SAME, allocation=allocation)
        requests = [tiny.add(prompt, greedy(8)) for prompt in prompts]
        most[allocation] = 0
        while tiny.engine.has_work:
            tiny.engine.step()
            tiny.engine.block_manager.check_invariants()
            most[allocation] = max(most[allocation], len(tiny.engine.scheduler.running))
        answers[allocation] = [r.output().outputs[0].token_ids for r in requests]
        steps[allocation] = tiny.engine.num_steps
        assert_idle(tiny)
    assert tiny.engine.stats().preemptions == 0
    assert answers["contiguous"] == answers["paged"]
    assert most["contiguous"] == 3
    assert most["paged"] >= 7
    assert steps["contiguous"] > 1.5 * steps["paged"]


@pytest.mark.parametrize("company", [0, 4])
def test_a_search_of_one_beam_runs_in_a_reservation(company: int) -> None:
    """Beside others, one of which waits, since three reservations fit."""
    searched = []
    for allocation in ("paged", "contiguous"):
        tiny = Tiny(**SAME, allocation=allocation)
        others = [tiny.add(ids(6 + k, salt=k), greedy(9)) for k in range(company)]
        request = tiny.add(ids(7), beams(1, 12, ignore_eos=True))
        tiny.run()
        searched.append([r.output().outputs[0].token_ids for r in (request, *others)])
        assert_idle(tiny)
    assert searched[0] == searched[1]
    assert searched[0][0] == tiny.tokens(ids(7), greedy(12))


def test_what_needs_sharing_is_refused() -> None:
    tiny = Tiny(**SAME, allocation="contiguous")
    with pytest.raises(ValueError, match="n=2 must be 1 with allocation='contiguous'"):
        tiny.request(ids(4), SamplingParams(n=2))
    with pytest.raises(ValueError, match=r"beam_width .*=2 must be 1 with allocation='contiguous'"):
        tiny.request(ids(4), beams(2))
    assert_idle(tiny)
    with pytest.raises(ValueError, match="allocation='striped' must be one of paged, contiguous"):
        Tiny(allocation="striped")
    with pytest.raises(ValueError, match="num_blocks=9 must be at least 10"):
        Tiny(allocation="contiguous", max_model_len=40, num_gpu_blocks_override=9)
