"""The paging benchmark: its accounts, its mixes, and the values the field publishes."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from benchmarks.studies.__main__ import main
from benchmarks.studies.paging.beams import BeamRun
from benchmarks.studies.paging.job import PAGED, PagingJob, compare_allocators, run_paging
from benchmarks.studies.paging.language import Language
from benchmarks.studies.paging.occupancy import paged_occupancy, reserved_occupancy
from benchmarks.studies.paging.reserving import ReservingMemory, true_length
from benchmarks.studies.paging.sharing import beam_search, parallel_sampling
from benchmarks.studies.paging.simulation import simulate
from benchmarks.studies.paging.slot_pools import BuddyPool
from benchmarks.studies.paging.system_prompt import run_prompts, shared_prompts
from benchmarks.studies.paging.tables import paging_tables
from benchmarks.studies.paging.trace import ALPACA, SHAREGPT, Lengths, read_trace
from paxkv.memory import BlockManager

SMALL = PagingJob(pool_slots=400, max_model_len=64, block_size=4, max_num_seqs=32)
SOME = tuple(Lengths(prompt, output) for prompt, output in [(9, 20), (30, 5), (3, 40)] * 12)


def test_slots_of_pages_add_up_and_shared_ones_count_once():
    memory = BlockManager(10, 4, max_rows=4)
    row = memory.allocate([1] * 6).row
    memory.fork(row, 2)
    memory.append_batch([0, 1])
    now = paged_occupancy(memory)
    # Block 0 is shared by all, and of the half-full tails there are three: 7, 7 and 6 tokens.
    assert (now.used, now.tail, now.free) == (4 + 3 + 3 + 2, 4, 40 - 16)
    assert now.waste == 4 / 16


def test_slots_of_a_reservation_add_up():
    memory = ReservingMemory(BuddyPool(100), true_length, SOME, 64, max_rows=4)
    memory.allocate([1] * 9, chain=0, first_chunk=9)
    now = reserved_occupancy(memory, {0: 29})
    assert (now.used, now.reserved, now.internal, now.external) == (9, 20, 3, 68)


@pytest.mark.parametrize("paged", [True, False])
def test_a_simulated_run_ends_and_computes_every_token_once(paged):
    limits = SMALL.limits()
    if paged:
        memory = BlockManager(1000, 4, max_rows=32, caching=False)
    else:
        memory = ReservingMemory(BuddyPool(4000), true_length, SOME, 64, 32)
    totals = []

    def probe(final):
        now = paged_occupancy(memory) if paged else reserved_occupancy(memory, final)
        totals.append(now.held + now.free)

    run = simulate(SOME, memory, limits, probe)
    # The last token of an answer is drawn and never computed.
    assert run.computed == sum(each.total - 1 for each in SOME)
    assert (run.preemptions, len(run.first_tokens)) == (0, len(SOME))
    assert set(totals) == {4000}
    assert not memory.num_tokens.any()


def test_preempted_requests_are_computed_again():
    limits = SMALL.limits()
    memory = BlockManager(20, 4, max_rows=32, caching=False)
    run = simulate(SOME, memory, limits, lambda _: paged_occupancy(memory))
    assert run.preemptions > 0
    assert run.computed > sum(each.total - 1 for each in SOME)
    memory.check_invariants()
    assert memory.num_free_blocks == 20


def test_a_request_that_cannot_fit_is_refused():
    with pytest.raises(ValueError, match="request 1 has 65 tokens"):
        simulate([Lengths(1, 1), Lengths(60, 5)], None, SMALL.limits(), lambda _: None)


@pytest.fixture(scope="module")
def sharegpt():
    return compare_allocators(PagingJob(), SHAREGPT.draw(250, 2048).requests)


def test_the_pagedattention_papers_batches(sharegpt):
    held = {name: figures["held"] for name, figures in sharegpt.items()}
    assert held["contiguous, maximum"] == 7  # as in its figure 13: 15,700 // 2,048
    assert held[PAGED] / held["contiguous, maximum"] >= 4
    assert held[PAGED] / held["buddy, true length"] >= 2
    assert held["contiguous, maximum"] < held["buddy, next power of two"]
    assert held["buddy, next power of two"] < held["buddy, true length"]
    speed = [figures["requests_per_second"] for figures in sharegpt.values()]
    assert max(speed) == sharegpt[PAGED]["requests_per_second"]


def test_waste_is_below_four_percent(sharegpt):
    assert sharegpt[PAGED]["waste"] < 0.04
    for name, figures in sharegpt.items():
        slots = figures["slots"]
        size = 15_696 if name == PAGED else 15_700
        assert sum(slots.values()) == pytest.approx(size)
        assert (slots["tail"] > 0) == (name == PAGED)
        assert (slots["internal"] > 0) == (name != PAGED)


def test_mixes_have_the_papers_means():
    for mix in (SHAREGPT, ALPACA):
        trace = mix.draw(20_000, 2048)
        assert trace.mean_prompt == pytest.approx(mix.mean_prompt, rel=0.03)
        assert trace.mean_output == pytest.approx(mix.mean_output, rel=0.03)
        outputs = np.array([each.output for each in trace.requests])
        assert outputs.std() == pytest.approx(outputs.mean(), rel=0.1)
        assert max(each.total for each in trace.requests) <= 2048
        assert mix.draw(50, 2048) == mix.draw(50, 2048)


def test_parallel_sampling_shares_the_full_blocks_of_the_prompt():
    # Two answers share 8 of the 8 + 3·k tokens' blocks, and nothing else.
    limits = SMALL.limits()
    assert parallel_sampling([Lengths(8, 1)], limits, 2) == pytest.approx(1 / 2)
    long = parallel_sampling([Lengths(8, 40)] * 4, limits, 2)
    assert 0.05 < long < 2 / 8
    assert parallel_sampling([Lengths(8, 40)], limits, 1) == 0


def small_language(width: int, likeness: float = 0.5) -> Language:
    return Language(width, likeness, vocab_size=500, num_contexts=32)


def test_beams_keep_the_tables_sound_and_share_more_with_more_beams():
    requests = [Lengths(5, 30), Lengths(20, 12), Lengths(9, 1)]
    run = BeamRun(requests, 4, 4, small_language(4))
    counts = []
    for tokens in run.steps():
        run.memory.check_invariants()
        counts.append(tokens)
    assert counts == [34, *[8] * 11, *[4] * 18]
    assert run.memory.num_free_blocks == run.memory.num_blocks
    saved = [beam_search(requests, 4, width, small_language(width)) for width in (1, 2, 4)]
    assert saved[0] == 0 < saved[1] < saved[2] < 1


def test_the_language_goes_on_alike_after_the_same_tokens():
    language = small_language(4, likeness=0)
    texts = [(0, [1, 2, 3]), (0, [9, 2, 3]), (1, [1, 2, 3]), (0, [1, 2, 4])]
    ids, logprobs = language.candidates(texts)
    assert (ids[0] == ids[1]).all()
    assert (ids[0] != ids[2]).any()
    assert (ids[0] != ids[3]).any()
    assert (np.diff(logprobs, axis=1) <= 0).all()
    assert np.exp(logprobs).sum(axis=1).max() <= 1
    assert len(set(ids[0].tolist())) == 4


def test_at_some_places_all_texts_of_a_topic_go_on_alike():
    language = small_language(4, likeness=0.3)
    alike = 0
    for length in range(1, 401):
        ids, _ = language.candidates([(7, [k] * length) for k in range(6)])
        alike += (ids == ids[0]).all()
    assert 80 < alike < 160


def test_beams_that_resemble_each_other_share_less():
    requests = [Lengths(4, 60)] * 6
    saved = [beam_search(requests, 4, 4, small_language(4, likeness)) for likeness in (0, 0.7, 1)]
    assert saved[0] > saved[1] > saved[2] > 0


def test_the_next_tokens_have_the_entropy_they_claim():
    assert Language(4, num_contexts=64).entropy == pytest.approx(2.3, abs=0.25)


def test_a_system_prompt_is_computed_once():
    requests = [Lengths(20 + i, 3) for i in range(10)]
    prompts = shared_prompts(requests, 500)
    outputs = [each.output for each in requests]
    job = PagingJob()
    cached = run_prompts(prompts, outputs, job.limits(caching=True))
    plain = run_prompts(prompts, outputs, job.limits())
    everything = sum(map(len, prompts))
    assert plain.prefill_tokens == everything
    # 31 of the blocks of 16 are full of the 500 tokens.
    assert cached.prefill_tokens == everything - 9 * 496
    assert cached.hit_rate == pytest.approx(9 * 496 / everything)
    assert (plain.kv_saved, cached.kv_saved > 0.5) == (0, True)
    assert cached.mean_first_token < plain.mean_first_token


def test_a_trace_file_runs_and_is_reported(tmp_path, capsys):
    trace = tmp_path / "trace.jsonl"
    lines = [{"prompt_len": each.prompt, "output_len": each.output} for each in SOME]
    lines.append({"prompt_token_ids": [1, 2, 3], "max_tokens": 4})
    trace.write_text("\n".join(map(json.dumps, lines)))
    assert read_trace(trace, 64).requests == (*SOME, Lengths(3, 4))
    out, md = tmp_path / "out.json", tmp_path / "out.md"
    flags = f"--trace {trace} --pool-slots 300 --max-model-len 64 --no-sharing"
    assert main(["paging", *flags.split(), "--json", str(out), "--markdown", str(md)]) == 0
    figures = json.loads(out.read_text())["traces"]["trace.jsonl"]
    assert figures["allocators"]["contiguous, maximum"]["held"] == pytest.approx(4)
    assert "trace.jsonl: 37 requests" in capsys.readouterr().out
    assert md.read_text().count("\n### ") == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: not JSON"),
        ("[]", "must be a JSON object"),
        ('{"prompt_len": 0, "output_len": 1}', "prompt_len is 0"),
        ('{"prompt_len": 1}', "output_len is None"),
        ('{"prompt_len": 60, "output_len": 5}', "is 65; at most max_model_len=64"),
        ("", "holds no request"),
    ],
)
def test_a_bad_trace_is_named(tmp_path, line, message):
    path = tmp_path / "trace.jsonl"
    path.write_text(line)
    with pytest.raises(ValueError, match=message):
        read_trace(path, 64)


def test_a_plot_without_matplotlib_says_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    flags = ["--trace", "synthetic", "--plot", str(tmp_path / "plot.svg")]
    assert main(["paging", *flags]) == 2
    assert "pip install 'paxkv[plot]'" in capsys.readouterr().err


def test_a_plot_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks.studies.paging.tables import draw_paging
    from paxkv.output_file import OutputFile

    job = PagingJob(num_requests=8, pool_slots=600, max_model_len=300)
    report = run_paging(job, sharing=False)
    path = tmp_path / "plot.svg"
    draw_paging(report, OutputFile(path))
    assert path.read_text().count("<svg") == 1
    assert len(paging_tables(report)) == 5
    with pytest.raises(ValueError, match="plot.xyz"):
        draw_paging(report, OutputFile(tmp_path / "plot.xyz"))


@pytest.mark.parametrize("flags", ["--pool-slots 0", "--max-model-len 20000", "--spread 0"])
def test_a_wrong_option_is_one_sentence(flags, capsys):
    assert main(["paging", "--trace", "synthetic", *flags.split()]) == 2
    assert capsys.readouterr().err.startswith("studies paging: ")
