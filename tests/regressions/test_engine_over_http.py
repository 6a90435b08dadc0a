"""Bug bank: the cases of the engine, as a client of the server meets them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from paxkv.sampling.sampling_params import SamplingParams
from tests.regressions.test_metrics import Scrape, check_idle
from tests.server.tiny_server import (
    TinyModel,
    TinyServer,
    chat,
    completion,
    forced,
    serving,
    tokenizer,
)

COMPLETIONS = "/v1/completions"
TIGHT = {"num_gpu_blocks_override": 20, "max_num_seqs": 4, "max_num_batched_tokens": 16}


def ask(server: TinyServer, body: dict[str, Any]) -> Any:
    reply = server.post(COMPLETIONS, {**body, "return_token_ids": True})
    assert reply.status == 200, reply.content
    return reply.json()


def tokens(server: TinyServer, body: dict[str, Any]) -> list[list[int]]:
    return [choice["token_ids"] for choice in ask(server, body)["choices"]]


def at_once(server: TinyServer, bodies: Sequence[dict[str, Any]]) -> list[Any]:
    """Answers to requests that run side by side."""
    found: dict[int, Any] = {}

    def run(number: int) -> None:
        found[number] = ask(server, bodies[number])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[number] for number in range(len(bodies))]


def without_ids(answer: Any) -> Any:
    """What two answers to one question have in common."""
    usage = {**answer["usage"], "prompt_tokens_details": None}
    return answer["choices"], usage


PROMPTS = [[*range(40, 60), 10 + number, *range(80, 80 + number)] for number in range(8)]


@pytest.fixture(scope="module")
def tight() -> Any:
    with serving(TinyModel(**TIGHT)) as server:
        yield server


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"frequency_penalty": 0.7, "presence_penalty": 0.4, "repetition_penalty": 1.2},
        {"min_tokens": 30, "ignore_eos": False},
        {"temperature": 0.9, "seed": 5, "n": 2},
    ],
    ids=str,
)
def test_ps_02_and_bm_02_a_full_pool_is_invisible(
    tight: TinyServer, server: TinyServer, fields: dict[str, Any]
) -> None:
    """Preempted, computed again, shared and evicted, or none of it: the same answers."""
    bodies = [completion(prompt, max_tokens=40, **fields) for prompt in PROMPTS]
    want = [without_ids(ask(server, body)) for body in bodies]
    before = Scrape(tight)["num_preemptions_total"]
    assert [without_ids(answer) for answer in at_once(tight, bodies)] == want
    scrape = Scrape(tight)
    assert scrape["num_preemptions_total"] > before
    assert scrape["prefix_cache_hits_total"] > 0
    check_idle(scrape)
    tight.wait_idle()


def test_ps_01_what_no_cache_holds_is_refused_and_what_outgrows_it_ends(tight: TinyServer) -> None:
    reply = tight.post(COMPLETIONS, completion([5] * 200))
    assert (reply.status, reply.error["param"]) == (400, "prompt")
    assert "200" in reply.error["message"]
    assert "80" in reply.error["message"]
    large, small = at_once(
        tight, [completion([5] * 60, max_tokens=300), completion([6] * 5, max_tokens=9)]
    )
    assert large["choices"][0]["finish_reason"] == "length"
    assert 1 <= large["usage"]["completion_tokens"] <= 21
    assert small["usage"]["completion_tokens"] == 9
    tight.wait_idle()


def test_ps_03_full_swap_space_ends_nothing(server: TinyServer) -> None:
    bodies = [completion(p, n=3, seed=3, temperature=1, max_tokens=20) for p in PROMPTS[:5]]
    want = [without_ids(ask(server, body)) for body in bodies]
    options = {"preemption_mode": "swap", "num_cpu_blocks_override": 3}
    with serving(TinyModel(**TIGHT, **options)) as swapping:
        assert [without_ids(answer) for answer in at_once(swapping, bodies)] == want
        scrape = Scrape(swapping)
        assert scrape["num_preemptions_total"] > 0
        assert scrape["cpu_cache_usage_perc"] == 0
        check_idle(scrape)
        swapping.wait_idle()


def test_pc_01_equal_hashes_of_two_tenants(
    server: TinyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [completion(prompt, cache_salt=salt) for salt in ("a", "b") for prompt in PROMPTS[:3]]
    want = [tokens(server, body) for body in bodies]
    memory = server.model.engine.block_manager
    server.on_engine(lambda engine: engine.block_manager.reset_prefix_cache())
    with monkeypatch.context() as patched:
        for owner in (memory, memory._state.row_hashes):
            patched.setattr(owner, "_block_hash", lambda *_: b"7" * 32)
        assert [tokens(server, body) for body in bodies] == want
    server.on_engine(lambda engine: engine.block_manager.reset_prefix_cache())


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9, 32])
def test_pc_03_a_full_hit_still_computes_a_token(server: TinyServer, length: int) -> None:
    server.on_engine(lambda engine: engine.block_manager.reset_prefix_cache())
    body = completion([20 + length, *range(60, 59 + length)])
    cold, warm = ask(server, body), ask(server, body)
    assert without_ids(cold) == without_ids(warm)
    cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in (cold, warm)]
    assert cached == [0, (length - 1) // 4 * 4]


def test_pc_04_prompts_of_one_request_share_what_none_has_computed(server: TinyServer) -> None:
    prompts = [[*range(100, 140), number] for number in range(5)] + [[9] * 50]
    alone = [tokens(server, completion(p, enable_prefix_caching=False))[0] for p in prompts]
    server.on_engine(lambda engine: engine.block_manager.reset_prefix_cache())
    answer = ask(server, completion(prompts))
    assert [choice["token_ids"] for choice in answer["choices"]] == alone
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("penalty", [0.0, 2.0])
def test_bs_01_beams_are_the_engines(server: TinyServer, early: bool, penalty: float) -> None:
    fields = {"use_beam_search": True, "n": 3, "length_penalty": penalty, "early_stopping": early}
    params = SamplingParams(temperature=0, max_tokens=10, **fields)  # type: ignore[arg-type]
    request = server.model.input_processor.request("the cat", params)

    def search(engine: Any) -> None:
        engine.add(request)
        while engine.has_work:
            engine.step()

    server.on_engine(search)
    want = [output.token_ids for output in request.output().outputs]
    body = completion("the cat", max_tokens=10, ignore_eos=False, **fields)
    assert tokens(server, body) == want
    assert len({tuple(beam) for beam in want}) == 3


def test_bs_03_seeds_bad_words_and_children(server: TinyServer) -> None:
    seeded = completion("the cat", temperature=0.9, seed=42, max_tokens=24)
    other = completion("the cat", temperature=0.9, max_tokens=24)
    alone = tokens(server, seeded)
    for place in (0, 2):
        company = [other, other, other]
        company[place] = seeded
        answers = at_once(server, company)
        found = [[c["token_ids"] for c in answer["choices"]] for answer in answers]
        assert found[place] == alone
        assert len({str(each) for each in found}) == 3
    four = completion("the cat", n=4, seed=42, temperature=1.5, max_tokens=24)
    children = tokens(server, four)
    assert children == tokens(server, four)
    assert len({tuple(child) for child in children}) == 4
    said = {token for child in children for token in child}
    word = max(said, key=lambda token: sum(token in child for child in children))
    banned = tokens(server, {**four, "bad_words": [tokenizer().decode([word])]})
    assert sum(word in child for child in children) > 1
    assert not any(word in child for child in banned)


def test_sa_01_top_k(server: TinyServer) -> None:
    sampled = completion("the cat", seed=1, temperature=1.0, max_tokens=8)
    assert tokens(server, {**sampled, "top_k": 2_000_000}) == tokens(
        server, {**sampled, "top_k": -1}
    )
    greedy = tokens(server, completion("the cat", max_tokens=8))
    mixed = [{**sampled, "top_k": top_k} for top_k in (5, 0, 1)]
    found = at_once(server, [completion("the cat", max_tokens=8), *mixed])
    found = [[c["token_ids"] for c in answer["choices"]] for answer in found]
    assert found[0] == found[3] == greedy
    assert found[1:3] == [tokens(server, body) for body in mixed[:2]]
    reply = server.post("/v1/chat/completions", chat(logprobs=True, top_logprobs=60000))
    assert (reply.status, reply.error["param"]) == (400, "top_logprobs")


def test_sa_03_temperatures(server: TinyServer) -> None:
    greedy = tokens(server, completion("the cat", max_tokens=12))
    for value in (1e-4, 1e-5, 1e-6, 1e-30, 0.0):
        body = completion("the cat", seed=1, temperature=value, max_tokens=12)
        assert tokens(server, body) == greedy, value
    for value in (-1, float("nan"), float("inf"), -float("inf")):
        reply = server.post(COMPLETIONS, completion(temperature=value))
        assert (reply.status, reply.error["param"]) == (400, "temperature")


def test_sa_05_penalties_stay_with_their_request(server: TinyServer) -> None:
    plain = completion("the cat", max_tokens=100)
    bodies = [plain, {**plain, "repetition_penalty": 1.8}, {**plain, "frequency_penalty": 2.0}]
    want = [tokens(server, body) for body in bodies]
    assert len({str(each) for each in want}) == 3
    for order in ([1, 0], [0, 1], [0, 2, 1], [2, 0, 1, 0]):
        answers = at_once(server, [bodies[kind] for kind in order])
        found = [[choice["token_ids"] for choice in answer["choices"]] for answer in answers]
        assert found == [want[kind] for kind in order]


def test_sa_08_logprobs_are_of_the_raw_distribution(server: TinyServer) -> None:
    def first(**fields: Any) -> dict[str, float]:
        answer = ask(server, completion("the cat", logprobs=5, max_tokens=1, **fields))
        return answer["choices"][0]["logprobs"]["top_logprobs"][0]

    raw = first()
    for fields in ({"temperature": 0.2, "top_k": 1}, {"temperature": 1, "top_p": 0.1, "seed": 1}):
        found = first(**fields)
        both = raw.keys() & found.keys()
        assert len(both) >= 4
        assert {k: found[k] for k in both} == pytest.approx({k: raw[k] for k in both}, abs=1e-4)


@pytest.mark.parametrize("skip", [True, False])
def test_st_03_special_tokens_stop(server: TinyServer, skip: bool) -> None:
    base = tokens(server, completion("the cat", max_tokens=9))[0]
    text = tokenizer().decode(base, skip_special_tokens=skip)
    with forced(server, [*base, 2]):
        for stop, reason in (
            ({"stop_token_ids": [2]}, 2),
            ({"stop": ["<|im_end|>"]}, "<|im_end|>"),
        ):
            body = completion(max_tokens=30, skip_special_tokens=skip, **stop)
            (choice,) = ask(server, body)["choices"]
            assert choice["token_ids"] == [*base, 2]
            assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", reason)
            assert choice["text"] == text


def test_st_04_ends_and_min_tokens(server: TinyServer) -> None:
    with forced(server, [50, 2]):

        def said(**fields: Any) -> tuple[int, str]:
            (choice,) = ask(server, completion(**{"max_tokens": 9, **fields}))["choices"]
            return len(choice["token_ids"]), choice["finish_reason"]

        assert said(ignore_eos=False) == (2, "stop")
        assert said(ignore_eos=True) == (9, "length")
        assert said(ignore_eos=True, stop_token_ids=[2]) == (2, "stop")
        assert said(ignore_eos=False, min_tokens=7)[0] >= 7
    first = ask(server, completion("the cat", max_tokens=1))["choices"][0]["text"]
    late = ask(server, completion("the cat", stop=[first], min_tokens=6, max_tokens=12))
    assert late["usage"]["completion_tokens"] >= 6
    reply = server.post(COMPLETIONS, completion(min_tokens=9, max_tokens=3))
    assert (reply.status, reply.error["param"]) == (400, "min_tokens")


def test_sc_01_a_prompt_longer_than_a_step(tight: TinyServer, server: TinyServer) -> None:
    body = completion([*range(3, 73)])
    want = tokens(server, body)
    before = tight.on_engine(lambda engine: engine.num_steps)
    assert tokens(tight, body) == want
    assert tight.on_engine(lambda engine: engine.num_steps) - before >= 70 // 16 + 5
    assert tight.on_engine(lambda engine: max(engine.tokens_per_step)) <= 16


def test_sc_02_a_stream_goes_on_while_long_prompts_arrive(server: TinyServer) -> None:
    """Each of its tokens takes a step, whatever else is in that step."""
    connection = server.open("POST", COMPLETIONS, completion(max_tokens=80, stream=True))
    stream = connection.getresponse()
    stream.readline()
    before = server.on_engine(lambda engine: engine.num_steps)
    long = [
        completion([30 + number, *range(40, 290)] + [9] * 150, max_tokens=1) for number in range(9)
    ]
    others = threading.Thread(target=at_once, args=(server, long))
    others.start()
    assert stream.read().endswith(b"data: [DONE]\n\n")
    steps = server.on_engine(lambda engine: engine.num_steps) - before
    others.join()
    assert steps <= 80 + 4


def test_rc_01_steady_traffic_compiles_nothing(server: TinyServer) -> None:
    def programs() -> float:
        (value,) = [s.value for s in Scrape(server).samples if s.name == "paxkv:compiled_programs"]
        return value

    bodies = [completion([5] * n, max_tokens=3) for n in (1, 2, 15, 16, 17, 63, 64, 65, 500)]
    at_once(server, bodies)
    before = programs()
    at_once(server, bodies)
    for body in bodies:
        ask(server, body)
    assert programs() == before > 0
