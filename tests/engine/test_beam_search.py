"""Beam search in the engine: transformers' beams, whatever else runs, in however few pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paxkv.engine.request import Request
from paxkv.outputs import RequestOutput
from paxkv.sampling.sampling_params import SamplingParams
from tests.engine.beam_cases import (
    CASES,
    CONFIG,
    END_IDS,
    PROMPTS,
    Case,
    beam_engine,
    beams,
    scores,
)
from tests.engine.tiny import Tiny, greedy, ids
from tests.regressions.engines import assert_idle

CLOSE = 1e-3
TIGHT = 30


def tokens(output: RequestOutput) -> list[list[int]]:
    return [beam.token_ids for beam in output.outputs]


def assert_case(case: Case, output: RequestOutput, found: list[list[int]], true: Any) -> None:
    assert tokens(output) == found, case
    if true is not None:
        assert scores(output, case.length_penalty) == pytest.approx(true, abs=CLOSE), case
    for beam in output.outputs:
        ended = beam.token_ids[-1] in END_IDS
        assert beam.finish_reason == ("stop" if ended else "length")
        assert beam.stop_reason is None


def test_stored_answers_of_transformers_all_in_one_batch(data_dir: Path) -> None:
    stored = json.loads((data_dir / "beams.json").read_text())["cases"]
    engine = beam_engine()
    outputs = engine.generate(
        [PROMPTS[case.prompt] for case in CASES], [case.params for case in CASES]
    )
    for case, output, true in zip(CASES, outputs, stored, strict=True):
        assert_case(case, output, true["outputs"], true["scores"])
    assert_idle(engine)
    stats = engine.engine.stats()
    assert stats.cow_copies > 0
    assert max(stats.tokens_per_step) > 16, "searches did not share steps"


@pytest.mark.parity
def test_transformers_live() -> None:
    import torch

    from tests.engine.transformers_beams import model, search

    torch.set_num_threads(1)
    engine = beam_engine()
    for case in CASES:
        prompt = PROMPTS[case.prompt]
        fields = {
            "length_penalty": case.length_penalty,
            "early_stopping": case.early_stopping,
        }
        found, true = search(model(), prompt, case.width, **fields)
        assert_case(case, engine.generate([prompt], case.params)[0], found, true)


EDITS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"repetition_penalty": 1.4}, {"repetition_penalty": 1.4}),
    ({"min_tokens": 7}, {"min_new_tokens": 7}),
    ({"logit_bias": {17: 3.0, 60: -4.0}}, {"sequence_bias": [[[17], 3.0], [[60], -4.0]]}),
    (
        {"allowed_token_ids": list(range(40, 100))},
        {"prefix_allowed_tokens_fn": lambda batch, ids: list(range(40, 100))},
    ),
    ({"ignore_eos": True}, {"end_ids": ()}),
    ({"ignore_eos": True, "stop_token_ids": [17, 60, 100]}, {"end_ids": (17, 60, 100)}),
]


@pytest.mark.parity
@pytest.mark.parametrize("ours, theirs", EDITS, ids=[", ".join(ours) for ours, _ in EDITS])
def test_edits_mean_what_they_mean_in_transformers(
    ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    import torch

    from tests.engine.transformers_beams import model, search

    torch.set_num_threads(1)
    engine = beam_engine()
    for prompt in PROMPTS:
        found, true = search(model(), prompt, 4, early_stopping="never", **theirs)
        (output,) = engine.generate([prompt], beams(4, early_stopping="never", **ours))
        assert tokens(output) == found
        assert scores(output, 1.0) == pytest.approx(true, abs=CLOSE)


# In company

SAMPLED = SamplingParams(n=2, seed=3, temperature=0.9, max_tokens=14, ignore_eos=True)
MIX: list[tuple[list[int], SamplingParams]] = [
    (ids(9, salt=1), greedy(20)),
    (ids(14, salt=2), beams(4, 20, early_stopping="never", length_penalty=2.0)),
    (ids(5, salt=3), SAMPLED),
    (ids(14, salt=2)[:12] + ids(4, salt=4), beams(3, 18, ignore_eos=True)),
    (ids(2, salt=5), beams(8, 14, repetition_penalty=1.3, early_stopping=True)),
    (ids(11, salt=6), greedy(16, frequency_penalty=0.5)),
    (ids(30, salt=7), beams(2, 16, min_tokens=8, allowed_token_ids=list(range(5, 110)))),
]


def fingerprint(output: RequestOutput) -> list[Any]:
    return [(beam.token_ids, beam.finish_reason, beam.stop_reason) for beam in output.outputs]


@pytest.fixture(scope="module")
def alone() -> list[RequestOutput]:
    engine = beam_engine()
    return [engine.generate([prompt], params)[0] for prompt, params in MIX]


@pytest.mark.parametrize("blocks, preempts", [(200, False), (TIGHT, True)])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("host_blocks", [0, 20])
def test_a_mixed_batch_gives_what_each_gives_alone(
    alone: list[RequestOutput], blocks: int, preempts: bool, caching: bool, host_blocks: int
) -> None:
    engine = beam_engine(
        num_gpu_blocks_override=blocks,
        enable_prefix_caching=caching,
        num_cpu_blocks_override=host_blocks or None,
        preemption_mode="swap" if host_blocks else "recompute",
    )
    requests = [engine.add(prompt, params) for prompt, params in MIX]
    engine.run()
    searches = [request for request in requests if request.is_beam_group]
    assert any(request.num_preemptions for request in searches) is preempts
    for request, expected in zip(requests, alone, strict=True):
        output = request.output()
        assert fingerprint(output) == fingerprint(expected)
        for beam, one in zip(output.outputs, expected.outputs):
            assert beam.cumulative_logprob == pytest.approx(one.cumulative_logprob, abs=CLOSE)
    assert_idle(engine)


def test_other_requests_advance_in_every_step() -> None:
    engine = beam_engine()
    other = engine.add(ids(6), greedy(30))
    engine.engine.step()
    engine.add(ids(9), beams(4, 12, ignore_eos=True))
    for _ in range(20):
        before = len(other.sequences[0].token_ids)
        engine.engine.step()
        assert len(other.sequences[0].token_ids) == before + 1
    engine.run()


def test_a_lone_search_takes_a_step_for_each_token() -> None:
    engine = beam_engine()
    engine.generate([ids(9)], beams(4, 12, ignore_eos=True))
    assert engine.engine.stats().tokens_per_step == (9, *[4] * 11)


# Pages


@pytest.mark.parametrize("length", [8, 9, 11])
def test_the_prompt_is_stored_once_and_only_tails_are_copied(length: int) -> None:
    engine = beam_engine()
    memory = engine.engine.block_manager
    engine.add(ids(length), beams(8, 30, ignore_eos=True))
    for _ in range(40):
        engine.engine.step()
        stats = engine.engine.stats()
        rows = memory.live_rows
        assert stats.used_blocks <= 2 + 8 * (-(-int(memory.num_tokens.max()) // 4) - 2)
        if len(rows) == 8:
            prompt = memory.tables[rows, : length // 4]
            assert (prompt == prompt[0]).all()
            assert stats.shared_blocks >= length // 4
    engine.run()
    assert engine.engine.stats().cow_copies > 0
    assert_idle(engine)


def sharing(engine: Tiny, request: Request) -> list[tuple[int, ...]]:
    """Which beams share each page that any of them holds."""
    memory = engine.engine.block_manager
    holders: dict[int, list[int]] = {}
    for sequence in request.sequences:
        for page in memory.row_pages(sequence.row).tolist():
            holders.setdefault(page, []).append(sequence.index)
    return sorted(map(tuple, holders.values()))


def advance(engine: Tiny, request: Request, known: int, computed: bool) -> None:
    """Until the beams have `known` tokens, and those are computed, or nothing is in flight."""
    while True:
        lengths = {len(sequence.output_token_ids) for sequence in request.sequences}
        remaining = {len(s.token_ids) - s.num_computed for s in request.sequences}
        if lengths == {known} and (remaining == {0} if computed else not engine.engine._in_flight):
            return
        engine.engine.step()
        engine.engine.block_manager.check_invariants()


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("length", [2, 13])
def test_preempted_beams_come_back_sharing_what_they_shared(caching: bool, length: int) -> None:
    engine, twin = (beam_engine(enable_prefix_caching=caching) for _ in range(2))
    request, other = (e.add(ids(length), beams(6, 30, ignore_eos=True)) for e in (engine, twin))
    for known in (1, 2, 7, 15, 24):
        advance(twin, other, known, computed=True)
        advance(engine, request, known, computed=False)
        engine.engine.block_manager.reset_prefix_cache()
        engine.engine.scheduler.preempt(request.sequences[0])
        assert not engine.engine.scheduler.running
        assert engine.engine.stats().used_blocks == 0
        advance(engine, request, known, computed=True)
        assert sharing(engine, request) == sharing(twin, other)
    engine.run()
    twin.run()
    assert request.num_preemptions == 5
    assert fingerprint(request.output()) == fingerprint(other.output())
    assert_idle(engine)


def test_beams_preempted_again_before_all_are_back() -> None:
    """Those that had been sampled from already must be sampled from again."""
    engine = beam_engine(enable_prefix_caching=False, max_num_batched_tokens=8, max_num_seqs=8)
    params = beams(6, 30, ignore_eos=True)
    ample = engine.generate([ids(13)], params)[0]
    request = engine.add(ids(13), params)
    advance(engine, request, 15, computed=False)
    engine.engine.scheduler.preempt(request.sequences[0])

    def half_back() -> bool:
        sampled = {sequence.sampled for sequence in request.sequences}
        return len(sampled) == 2 and not any(sequence.in_flight for sequence in request.sequences)

    for _ in range(40):
        if half_back():
            break
        engine.engine.step()
    assert half_back()
    assert {len(sequence.output_token_ids) for sequence in request.sequences} == {15}
    engine.engine.scheduler.preempt(request.sequences[0])
    engine.run()
    assert fingerprint(request.output()) == fingerprint(ample)
    assert request.num_preemptions == 2
    assert_idle(engine)


@pytest.mark.parametrize("width, prompt", [(1, 9), (2, 9), (8, 9), (8, 2)])
def test_a_search_that_outgrows_the_cache_ends_with_what_it_has(width: int, prompt: int) -> None:
    """With company or without, preempted or not: where it ends depends on its own pages."""
    params = beams(width, 200, ignore_eos=True)

    def run(company: bool) -> tuple[RequestOutput, int]:
        engine = beam_engine(num_gpu_blocks_override=TIGHT)
        first = [engine.add(ids(40, salt=1), greedy(60))] if company else []
        request = engine.add(ids(prompt), params)
        engine.run()
        for other in first:
            assert len(other.output().outputs[0].token_ids) == 60
        assert_idle(engine)
        return request.output(), request.num_preemptions

    (lone, _), (other, preempted) = run(False), run(True)
    assert preempted > 0
    assert fingerprint(lone) == fingerprint(other)
    assert len(lone.outputs) == width
    (length,) = {len(beam.token_ids) for beam in lone.outputs}
    assert 2 <= length < 200
    assert {beam.finish_reason for beam in lone.outputs} == {"length"}
    ample = beam_engine().generate([ids(prompt)], beams(width, length, ignore_eos=True))[0]
    assert fingerprint(ample) == fingerprint(lone)


def test_the_blocks_of_beams_are_found_again() -> None:
    engine = beam_engine()
    (first,) = engine.generate([ids(9)], beams(4, 16, ignore_eos=True))
    best = ids(9) + first.outputs[0].token_ids
    fresh = beam_engine(enable_prefix_caching=False)
    (again,) = engine.generate([best], beams(3, 8, ignore_eos=True))
    assert again.num_cached_tokens == len(best) - 1
    assert fingerprint(again) == fingerprint(
        fresh.generate([best], beams(3, 8, ignore_eos=True))[0]
    )


def test_max_model_len_ends_beams() -> None:
    engine = beam_engine()
    (output,) = engine.generate([ids(505)], beams(3, 100, ignore_eos=True))
    assert [(len(b.token_ids), b.finish_reason) for b in output.outputs] == [(7, "length")] * 3


# Ends


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 9])
def test_abort_leaves_nothing(steps: int) -> None:
    engine = beam_engine()
    other = engine.add(ids(5, salt=9), greedy(12))
    request = engine.add(ids(9), beams(4, 40, ignore_eos=True))
    for _ in range(steps):
        engine.engine.step()
    engine.engine.abort(request.request_id)
    output = request.output()
    assert output.finished
    assert {beam.finish_reason for beam in output.outputs} == {"abort"}
    assert len(output.outputs) == (4 if steps >= 2 else 1)
    engine.run()
    assert request.output() == output
    assert len(other.output().outputs[0].token_ids) == 12
    assert_idle(engine)


@pytest.mark.parametrize("position, index", [(0, 0), (3, 0), (3, 3)])
def test_logits_that_are_not_finite_end_the_search_with_an_error(
    position: int, index: int, caplog: pytest.LogCaptureFixture
) -> None:
    engine = beam_engine()
    request = engine.request(ids(9), beams(4, 12), request_id="bad")
    other = engine.add(ids(7), beams(3, 12, ignore_eos=True), request_id="good")

    def poison(request_id: str, beam: int, at: int) -> float | None:
        return float("nan") if (request_id, beam, at) == ("bad", index, position) else None

    engine.engine.runner.hooks.logits = poison
    engine.engine.add(request)
    engine.run()
    assert "not finite" in (request.error or "")
    assert {beam.finish_reason for beam in request.output().outputs} == {"error"}
    assert {beam.finish_reason for beam in other.output().outputs} == {"length"}
    assert [record.msg for record in caplog.records] == ["request %s failed: %s"]
    assert len(other.output().outputs) == 3
    assert_idle(engine)


@pytest.mark.parametrize("hook", ["before_launch", "inside_step"])
@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_failed_step_ends_its_searches_and_others_go_on(hook: str, at: int) -> None:
    engine = beam_engine()
    bystander = beam_engine().generate([ids(7)], beams(3, 12))[0]
    engine.add(ids(9), beams(4, 12, ignore_eos=True))

    def fail(step: int) -> None:
        if step == at:
            raise RuntimeError("planted")

    setattr(engine.engine.runner.hooks, hook, fail)
    engine.run()
    setattr(engine.engine.runner.hooks, hook, None)
    assert fingerprint(engine.generate([ids(7)], beams(3, 12))[0]) == fingerprint(bystander)
    assert_idle(engine)


def test_what_allowed_ids_leave_is_all_that_comes() -> None:
    engine = beam_engine()
    (output,) = engine.generate([ids(9)], beams(8, 2, allowed_token_ids=[50, 60]))
    assert sorted(tokens(output)) == [[50, 50], [50, 60], [60, 50], [60, 60]]
    (output,) = engine.generate([ids(9)], beams(4, 3, allowed_token_ids=[50]))
    assert tokens(output) == [[50, 50, 50]]
    assert_idle(engine)


def test_best_of_beams_are_searched_and_n_returned() -> None:
    engine = beam_engine()
    (four,) = engine.generate([ids(9)], beams(4, 12))
    (two,) = engine.generate([ids(9)], beams(2, 12, best_of=4))
    assert tokens(two) == tokens(four)[:2]


def test_steady_traffic_compiles_nothing() -> None:
    engine = beam_engine(
        deterministic=False, max_num_seqs=4, max_num_batched_tokens=16, enforce_eager=False
    )
    before = engine.engine.stats().compiled_programs
    assert len([name for name in before if name.startswith("sample")]) <= 8
    for width in (1, 2, 3, 4):
        engine.generate([ids(width), ids(20)], [beams(width, 5), greedy(3)])
    assert engine.engine.stats().compiled_programs == before


# Arguments


@pytest.mark.parametrize(
    "options, params, message",
    [
        (
            {"max_beam_width": 3},
            beams(4),
            "n.=4 must be at most max_beam_width=3",
        ),
        (
            {"max_num_seqs": 3},
            beams(4),
            "beam_width .* must be at most max_num_seqs=3",
        ),
        (
            {"max_beam_width": 16},
            beams(2, best_of=17),
            "beam_width .best_of.=17 must be at most max_beam_width=16",
        ),
    ],
)
def test_what_cannot_run_is_refused(
    options: dict[str, Any], params: SamplingParams, message: str
) -> None:
    engine = beam_engine(**options)
    with pytest.raises(ValueError, match=message):
        engine.add(ids(5), params)
    assert_idle(engine)


def test_the_reference_ends_beams_early() -> None:
    assert len(CONFIG.eos_token_ids) == len(END_IDS)
