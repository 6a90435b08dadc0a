"""Bug bank, sampling."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from paxkv.sampling.sampling_params import SamplingParams
from tests.engine import dense_reference
from tests.engine.tiny import CONFIG, greedy, ids, params
from tests.regressions.engines import CLOSE, assert_dense, assert_idle, small, tokens

VOCAB = CONFIG.vocab_size


@cache
def clear_prompt(gap: float = 0.1, count: int = 12) -> list[int]:
    """A prompt whose greedy answer never was a close decision."""
    for salt in range(200):
        prompt = ids(7, salt=salt)
        if min(dense_reference.greedy(params(), CONFIG, prompt, count)[1]) > gap:
            return prompt
    raise AssertionError("no such prompt")


@cache
def echoing_prompt() -> list[int]:
    """Its likeliest next token is in it, closely before one that is not."""
    for salt in range(200):
        prompt = ids(40, salt=salt)
        scores = dense_reference.all_logits(params(), CONFIG, prompt)[-1]
        second, best = np.argsort(scores)[-2:].tolist()
        if best in prompt and second not in prompt and CLOSE < scores[best] - scores[second] < 1:
            return prompt
    raise AssertionError("no such prompt")


def penalised(prompt: list[int], count: int, **penalties: float) -> tuple[list[int], list[float]]:
    """Greedy tokens and gaps in float64 under Hugging Face's and OpenAI's penalties."""
    repetition = penalties.get("repetition_penalty", 1.0)
    output: list[int] = []
    gaps = []
    for _ in range(count):
        scores = dense_reference.all_logits(params(), CONFIG, prompt + output)[-1]
        for token in set(prompt + output):
            scores[token] *= repetition if scores[token] < 0 else 1 / repetition
        for token in set(output):
            scores[token] -= penalties.get("presence_penalty", 0.0)
            scores[token] -= penalties.get("frequency_penalty", 0.0) * output.count(token)
        second, best = np.sort(scores)[-2:]
        output.append(int(scores.argmax()))
        gaps.append(float(best - second))
    return output, gaps


def test_sa_01_top_k_above_the_vocabulary_is_off_and_mixes() -> None:
    tiny = small()
    prompt = ids(9)

    def sampled(top_k: int) -> list[int]:
        return tiny.tokens(
            prompt, SamplingParams(seed=1, temperature=1.0, top_k=top_k, max_tokens=8)
        )

    assert sampled(2_000_000) == sampled(-1) == sampled(0) == sampled(VOCAB) == sampled(2**63 - 1)
    mixed = [
        greedy(8),
        SamplingParams(temperature=1.0, top_k=5, seed=1, max_tokens=8, ignore_eos=True),
        SamplingParams(temperature=1.0, top_k=0, seed=1, max_tokens=8, ignore_eos=True),
        SamplingParams(temperature=1.0, top_k=1, max_tokens=8, ignore_eos=True),
        SamplingParams(temperature=1.0, top_p=0.0, max_tokens=8, ignore_eos=True),
    ]
    found = [tokens(output) for output in tiny.generate([prompt] * 5, mixed)]
    assert found[0] == found[3] == found[4]
    assert [tiny.tokens(prompt, chosen) for chosen in mixed] == found


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_sa_01_more_alternatives_than_allowed_are_refused(name: str) -> None:
    tiny = small()
    for wrong in (21, VOCAB, 60_000, -1):
        with pytest.raises(ValueError, match=f"{name}.*20"):
            tiny.request(ids(4), SamplingParams(**{name: wrong}))
    assert len(tiny.generate([ids(4)], greedy(2, **{name: 20}))) == 1


@pytest.mark.parametrize("temperature", [1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-30, 0.0])
def test_sa_03_tiny_temperatures_are_greedy(temperature: float) -> None:
    prompt = clear_prompt()
    want, _ = dense_reference.greedy(params(), CONFIG, prompt, 12)
    chosen = SamplingParams(temperature=temperature, seed=1, max_tokens=12, ignore_eos=True)
    assert small().tokens(prompt, chosen) == want


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), -1e-30, True, "0"])
def test_sa_03_wrong_temperatures_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="temperature"):
        SamplingParams(temperature=wrong)


@pytest.mark.parametrize(
    "penalties",
    [
        {"repetition_penalty": 1.8},
        {"presence_penalty": 1.5},
        {"frequency_penalty": 1.5},
        {"repetition_penalty": 0.7, "presence_penalty": -1.0, "frequency_penalty": 0.3},
    ],
    ids=lambda penalties: ", ".join(penalties),
)
def test_sa_05_penalties_follow_their_definitions(penalties: dict[str, float]) -> None:
    prompt = [*ids(9), *ids(9)]
    want, gaps = penalised(prompt, 16, **penalties)
    found = small(max_num_batched_tokens=64).tokens(prompt, greedy(16, **penalties))
    until = next((at for at, gap in enumerate(gaps) if gap < CLOSE), 16)
    assert until > 3
    assert found[:until] == want[:until]


@pytest.mark.parametrize("repetition", [1.8, 0.7])
def test_sa_05_repetition_multiplies_negative_scores(repetition: float) -> None:
    """Of two tokens the penalty turns the order, which dividing by it would not."""
    tiny = small()
    prompt = ids(30)
    scores = dense_reference.all_logits(params(), CONFIG, prompt)[-1]
    turned = [
        (seen, new)
        for seen in sorted(set(prompt))
        for new in sorted(set(range(3, VOCAB)) - set(prompt))
        if scores[seen] < 0
        if (scores[seen] - scores[new]) * (repetition - 1) > 0
        if (scores[new] - scores[seen] * repetition) * (repetition - 1) > CLOSE
    ]
    assert len(turned) > 4
    for seen, new in turned[:4]:
        chosen = greedy(1, repetition_penalty=repetition, allowed_token_ids=[seen, new])
        assert tiny.tokens(prompt, chosen) == [new if repetition > 1 else seen]


def test_sa_05_penalties_do_not_leak_to_batch_mates_or_later_requests() -> None:
    tiny = small()
    prompt = [*ids(9), *ids(9)]
    a, b = greedy(14, repetition_penalty=0.4, frequency_penalty=0.5), greedy(14)
    solo = {id(s): tiny.tokens(prompt, s) for s in (a, b)}
    assert solo[id(a)] != solo[id(b)]
    for order in ([a, b], [b, a], [b, a, b], [a, a, b, a]):
        found = [tokens(output) for output in tiny.generate([prompt] * len(order), order)]
        assert found == [solo[id(s)] for s in order]
    neutral = greedy(14, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0)
    assert tiny.tokens(prompt, neutral) == solo[id(b)]


def test_sa_05_presence_and_frequency_spare_the_prompt() -> None:
    tiny = small()
    prompt = echoing_prompt()
    plain = tiny.tokens(prompt, greedy(1))
    assert plain[0] in prompt
    for name in ("presence_penalty", "frequency_penalty"):
        assert tiny.tokens(prompt, greedy(1, **{name: 2.0})) == plain


@pytest.mark.parametrize("wrong", [-1, VOCAB, 2**31, 2**63, 5.0, "5", None, True])
def test_sa_06_ids_outside_the_vocabulary_are_refused(wrong: Any) -> None:
    tiny = small()
    with pytest.raises(ValueError, match="prompt_token_ids"):
        tiny.request([5, wrong], greedy(2))
    for name in ("stop_token_ids", "allowed_token_ids"):
        with pytest.raises(ValueError, match=name):
            tiny.request([5], SamplingParams(**{name: [wrong]}))
    with pytest.raises(ValueError, match="logit_bias"):
        tiny.request([5], SamplingParams(logit_bias={wrong: 1.0}))
    assert len(tiny.tokens([5], greedy(2))) == 2


@pytest.mark.parametrize("token", [0, VOCAB - 1])
def test_sa_06_the_first_and_the_last_id_work(token: int) -> None:
    tiny = small()
    assert tiny.tokens([token] * 3, greedy(1, logit_bias={token: 100})) == [token]
    assert tiny.tokens([5], greedy(2, allowed_token_ids=[token])) == [token] * 2
    chosen = SamplingParams(
        temperature=0, max_tokens=5, stop_token_ids=[token], logit_bias={token: 1e6}
    )
    output = tiny.generate([[5]], chosen)[0].outputs[0]
    assert (output.token_ids, output.stop_reason) == ([token], token)


def test_sa_06_a_ban_by_bias_bans() -> None:
    tiny = small()
    first = tiny.tokens(ids(9), greedy(1))[0]
    assert tiny.tokens(ids(9), greedy(1, logit_bias={first: -100}))[0] != first


# Scores


@cache
def dense_rows(prompt: tuple[int, ...]) -> np.ndarray:
    return dense_reference.logprobs(params(), CONFIG, list(prompt))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"enable_prefix_caching": False},
        {"max_num_batched_tokens": 16},
        {"max_num_batched_tokens": 100},
    ],
    ids=lambda options: ", ".join(f"{k}={v}" for k, v in options.items()) or "defaults",
)
def test_sa_07_prompt_logprobs_cold_and_warm_and_in_chunks(options: dict[str, Any]) -> None:
    tiny = small(**options)
    prompts = [ids(50), ids(50)[:33] + ids(3, salt=2), [7]]
    for _ in range(2):
        tiny.generate(prompts[:1], greedy(1))
        for prompt, output in zip(prompts, tiny.generate(prompts, greedy(3, prompt_logprobs=2))):
            rows = dense_rows(tuple(prompt))
            found = output.prompt_logprobs
            assert len(found) == len(prompt)
            assert found[0] is None
            assert output.num_cached_tokens == 0
            for at in range(1, len(prompt)):
                entry, row = found[at], rows[at - 1]
                assert next(iter(entry)) == prompt[at]
                rank = 1 + int((row > row[prompt[at]]).sum())
                assert entry[prompt[at]].logprob == pytest.approx(row[prompt[at]], abs=CLOSE)
                assert abs(entry[prompt[at]].rank - rank) <= 1
                assert len(entry) in (2, 3)
                best = max(value.logprob for value in entry.values())
                assert best == pytest.approx(row.max(), abs=CLOSE)
            assert_dense(prompt, tokens(output))
    assert_idle(tiny)


def test_sa_07_nothing_to_generate_is_refused() -> None:
    with pytest.raises(ValueError, match="max_tokens.*0"):
        SamplingParams(max_tokens=0)


def test_sa_07_logprobs_of_the_whole_vocabulary() -> None:
    tiny = small(max_logprobs=-1)
    (output,) = tiny.generate([ids(9)], greedy(3, logprobs=-1, prompt_logprobs=-1))
    assert output.prompt_logprobs is not None
    for found in (*output.outputs[0].logprobs, *output.prompt_logprobs[1:]):
        assert set(found) == set(range(CONFIG.vocab_size))
        assert math.isclose(sum(math.exp(x.logprob) for x in found.values()), 1, rel_tol=1e-4)
    with pytest.raises(
        ValueError, match="logprobs must be None or an integer from 0 to 20, got -1"
    ):
        small().generate([ids(9)], greedy(3, logprobs=-1))


def test_sa_02_top_n_sigma_reaches_the_device_and_no_other_request() -> None:
    """Against a dense float64 forward pass, at a temperature that makes everything else likely."""
    tiny, prompt, mate = small(max_num_seqs=20), ids(9), greedy(8)
    alone = tiny.generate([ids(12, salt=3)], mate)[0].outputs[0].token_ids
    row = np.asarray(dense_rows(tuple(prompt))[-1], np.float64)
    for sigmas in (1.0, 2.0):
        hot = SamplingParams(temperature=100.0, n=16, seed=4, max_tokens=1, top_n_sigma=sigmas)
        answers = tiny.generate([prompt, ids(12, salt=3)], [hot, mate])
        assert answers[1].outputs[0].token_ids == alone
        seen = {token for output in answers[0].outputs for token in output.token_ids}
        assert len(seen) > 2
        assert row[list(seen)].min() >= row.max() - sigmas * row.std() - CLOSE
    unfiltered = SamplingParams(temperature=100.0, n=16, seed=4, max_tokens=1)
    (answer,) = tiny.generate([prompt], unfiltered)
    lowest = min(row[output.token_ids[0]] for output in answer.outputs)
    assert lowest < row.max() - 2 * row.std()


def test_sa_08_logprobs_are_of_the_raw_distribution() -> None:
    tiny = small()
    prompt = ids(9)
    row = dense_rows(tuple(prompt))[-1]
    for fields in (
        {"temperature": 0},
        {"temperature": 0.2, "top_k": 1},
        {"temperature": 1.0, "top_p": 0.1, "seed": 1},
        {"temperature": 5.0, "seed": 2},
        {"temperature": 1.0, "min_p": 0.9, "seed": 1},
        {"temperature": 3.0, "top_n_sigma": 1.0, "seed": 1},
        {"temperature": 0, "repetition_penalty": 3.0, "presence_penalty": 2.0},
        {"temperature": 0, "logit_bias": {77: 1e4}},
        {"temperature": 0, "allowed_token_ids": [int(row.argmin())]},
    ):
        output = tiny.generate([prompt], SamplingParams(logprobs=5, max_tokens=1, **fields))[0]
        (entry,) = output.outputs[0].logprobs
        (token,) = output.outputs[0].token_ids
        assert token in entry
        assert len(entry) in (5, 6)
        for shown, value in entry.items():
            assert np.isfinite(value.logprob)
            assert value.logprob == pytest.approx(row[shown], abs=CLOSE)
            assert abs(value.rank - 1 - (row > row[shown]).sum()) <= 1
        top = set(np.argsort(-row)[:5].tolist())
        assert len(top & set(entry)) >= 4
        assert output.outputs[0].cumulative_logprob == pytest.approx(row[token], abs=CLOSE)


@pytest.mark.parametrize("wanted", [0, 1, 3, 20])
def test_sa_08_as_many_alternatives_as_asked_for(wanted: int) -> None:
    output = small().generate([ids(9)], greedy(4, logprobs=wanted))[0].outputs[0]
    for token, entry in zip(output.token_ids, output.logprobs):
        assert len(entry) == max(1, wanted)
        assert entry[token].rank == 1
        assert sorted(value.rank for value in entry.values()) == list(range(1, len(entry) + 1))


def test_sa_09_outputs_come_in_order_each_with_its_prompt() -> None:
    tiny = small(max_num_seqs=2, max_model_len=64)
    prompts = [ids(n, salt=n) for n in (60, 1, 30, 2, 55, 3, 47)]
    outputs = tiny.generate(prompts, greedy(4))
    assert [output.prompt_token_ids for output in outputs] == prompts
    for prompt, output in zip(prompts, outputs):
        assert_dense(prompt, tokens(output))


def test_sa_09_empty_and_long_prompts_are_refused() -> None:
    tiny = small(max_num_seqs=2, max_model_len=64)
    for wrong, message in (([], "empty"), (ids(64), "64.*max_model_len=64"), (ids(65), "65.*64")):
        with pytest.raises(ValueError, match=message):
            tiny.request(wrong, greedy(2))
        with pytest.raises(ValueError, match=f"prompt 1: .*{message}"):
            tiny.input_processor.requests([ids(3), wrong, ids(4)], greedy(2))
    output = tiny.generate([ids(63)], greedy(9))[0].outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (1, "length")
    assert_idle(tiny)
