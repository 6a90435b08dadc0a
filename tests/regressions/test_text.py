"""Bug bank, stop rules, detokenization and scores of the real model."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paxkv import LLM, SamplingParams
from paxkv.bench.workload import read_workload

PROMPT = "The capital of France is"
TEXTS = (
    "\U0001f9d1\u200d\U0001f680 ok",
    " \u4eca\u5929\u7684\u5929\u6c14\u5f88\u597d",
    "P\u0159\u00edli\u0161 \u017elu\u0165ou\u010dk\u00fd k\u016f\u0148",
    "a\u0301b \U0001f1ef\U0001f1f5",
)


@pytest.fixture(autouse=True)
def _no_hook_stays(smollm: LLM) -> Any:
    yield
    smollm.engine.runner.hooks.logits = None
    assert not smollm.engine.has_work


def greedy(count: int, **fields: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, **fields)


def forced(llm: LLM, ids: list[int], params: SamplingParams) -> Any:
    llm.engine.runner.hooks.logits = lambda request, child, at: ids[at] if at < len(ids) else None
    try:
        return llm.generate([PROMPT], params, use_tqdm=False)[0].outputs[0]
    finally:
        llm.engine.runner.hooks.logits = None


def streamed(llm: LLM, params: SamplingParams, ids: list[int] | None = None) -> list[str]:
    """The text after each step; every one begins with the one before."""
    if ids is not None:
        llm.engine.runner.hooks.logits = lambda request, child, at: ids[at]
    texts = [output.outputs[0].text for output in llm.stream(PROMPT, params)]
    llm.engine.runner.hooks.logits = None
    for earlier, later in pairwise(texts):
        assert later.startswith(earlier), "text that was shown has been taken back"
    return texts


@pytest.fixture(scope="module")
def plain(smollm: LLM) -> Any:
    return smollm.generate([PROMPT], greedy(24, ignore_eos=True), use_tqdm=False)[0].outputs[0]


def test_st_01_a_stop_string_ends_the_text_wherever_it_lies(smollm: LLM, plain: Any) -> None:
    full = plain.text
    stops = [full[start : start + width] for start in (2, 9) for width in (1, 4)]
    jobs = [(stop, include) for stop in stops for include in (False, True)]
    outputs = smollm.generate(
        [PROMPT] * len(jobs),
        [greedy(24, stop=[stop], include_stop_str_in_output=include) for stop, include in jobs],
        use_tqdm=False,
    )
    for (stop, include), output in zip(jobs, outputs):
        found = output.outputs[0]
        assert found.text == full[: full.index(stop)] + (stop if include else "")
        assert (found.finish_reason, found.stop_reason) == ("stop", stop)
        assert found.token_ids == plain.token_ids[: len(found.token_ids)]


@pytest.mark.parametrize("include", [False, True])
def test_st_01_streams_hold_back_what_may_become_a_stop_string(
    smollm: LLM, plain: Any, include: bool
) -> None:
    full = plain.text
    for start, width in ((5, 9), (12, 3)):
        stop = full[start : start + width]
        params = greedy(24, stop=[stop], include_stop_str_in_output=include)
        want = full[: full.index(stop)] + (stop if include else "")
        texts = streamed(smollm, params)
        assert texts[-1] == want
        assert all(want.startswith(text) for text in texts)


@pytest.mark.parametrize("skip", [True, False])
def test_st_03_a_special_stop_id_removes_nothing_else(smollm: LLM, plain: Any, skip: bool) -> None:
    base = plain.token_ids[:8]
    params = greedy(20, stop_token_ids=[2], ignore_eos=True, skip_special_tokens=skip)
    found = forced(smollm, [*base, 2], params)
    assert found.text == smollm.get_tokenizer().decode(base)
    assert (found.finish_reason, found.stop_reason) == ("stop", 2)
    assert found.token_ids == [*base, 2]


def test_st_03_a_special_tokens_text_is_met_on_its_token(smollm: LLM, plain: Any) -> None:
    base = plain.token_ids[:8]
    found = forced(smollm, [*base, 2], greedy(20, stop=["<|im_end|>"], ignore_eos=True))
    assert (found.finish_reason, found.stop_reason) == ("stop", "<|im_end|>")
    assert found.text == smollm.get_tokenizer().decode(base)
    with pytest.raises(ValueError, match="prompt 0: stop.*special token"):
        smollm.generate([PROMPT], greedy(4, stop=["x<|im_end|>"]), use_tqdm=False)


def test_st_04_all_end_ids_end_and_ignore_eos_spares_the_users_own(smollm: LLM) -> None:
    ends = sorted(smollm.input_processor._eos_token_ids)
    assert 2 in ends
    for end in ends:
        found = forced(smollm, [50, end], greedy(9))
        assert (found.token_ids, found.finish_reason) == ([50, end], "stop")
        assert found.stop_reason is None
        assert len(forced(smollm, [50, end], greedy(9, ignore_eos=True)).token_ids) == 9
        found = forced(smollm, [50, end], greedy(9, ignore_eos=True, stop_token_ids=[end]))
        assert (found.token_ids, found.stop_reason) == ([50, end], end)
        assert len(forced(smollm, [50, end], greedy(9, min_tokens=7)).token_ids) >= 7


def test_st_04_nothing_ends_before_min_tokens(smollm: LLM, plain: Any) -> None:
    first = smollm.get_tokenizer().decode(plain.token_ids[:1])
    outputs = smollm.generate(
        [PROMPT] * 2,
        [
            greedy(12, stop=[first], min_tokens=6),
            greedy(9, min_tokens=7, logit_bias={2: 1e5}),
        ],
        use_tqdm=False,
    )
    assert len(outputs[0].outputs[0].token_ids) >= 6
    assert outputs[1].outputs[0].token_ids.index(2) == 7, "no end id before, and at once then"
    with pytest.raises(ValueError, match="min_tokens.*max_tokens=3"):
        SamplingParams(min_tokens=9, max_tokens=3)


@pytest.mark.parametrize("text", TEXTS, ids=["emoji", "chinese", "czech", "combining"])
def test_dt_01_characters_split_over_tokens_come_whole(smollm: LLM, text: str) -> None:
    tokenizer = smollm.get_tokenizer()
    ids = tokenizer.encode(text)
    texts = streamed(smollm, greedy(len(ids), ignore_eos=True), ids)
    assert texts[-1] == tokenizer.decode(ids) == text
    assert not any("\ufffd" in shown for shown in texts)
    assert len(texts) >= len(ids)
    for count, shown in enumerate(texts[: len(ids)], 1):
        finished = tokenizer.decode(ids[: count - 1]).rstrip("\ufffd")
        assert shown.startswith(finished), "sent later than one token after its last byte"


def test_dt_03_displayed_tokens_have_no_vocabulary_marks(smollm: LLM) -> None:
    tokenizer = smollm.get_tokenizer()
    ids = tokenizer.encode(" the cat\n\u4eca\u5929 sat")
    found = forced(smollm, ids, greedy(len(ids), ignore_eos=True, logprobs=5))
    shown = [value.decoded_token for entry in found.logprobs for value in entry.values()]
    assert not any(mark in text for text in shown for mark in "\u0120\u010a\u2581")
    assert found.logprobs[0][ids[0]].decoded_token == " the"
    joined = b"".join(tokenizer.token_bytes(token) for token in found.token_ids)
    assert joined.decode() == found.text


def test_sa_09_an_empty_text_is_refused(smollm: LLM) -> None:
    for wrong in ("", [""], ["ok", ""]):
        with pytest.raises(ValueError, match=r"prompt \d: .*empty"):
            smollm.generate(wrong, greedy(2), use_tqdm=False)


def test_bs_03_bad_words_reach_every_child(smollm: LLM) -> None:
    params = SamplingParams(n=4, temperature=1.0, seed=1, max_tokens=16, bad_words=["the"])
    banned = {smollm.get_tokenizer().encode(text, False)[0] for text in ("the", " the")}
    for child in smollm.generate([PROMPT], params, use_tqdm=False)[0].outputs:
        assert not banned & set(child.token_ids)


# Scores against transformers in float32


def test_ck_01_first_logits_and_prompt_scores_are_transformers(smollm: LLM, data_dir: Path) -> None:
    """Tied embeddings, q and k rows in order, dequantized right: all at once."""
    stored = np.load(data_dir / "scores.npz")
    for index in range(4):
        ids = stored[f"ids_{index}"].tolist()
        output = smollm.generate(
            [{"prompt_token_ids": ids}],
            greedy(1, logprobs=20, prompt_logprobs=0),
            use_tqdm=False,
        )[0]
        for at, (entry, want) in enumerate(
            zip(output.prompt_logprobs[1:], stored[f"prompt_logprobs_{index}"], strict=True), 1
        ):
            assert entry[ids[at]].logprob == pytest.approx(want, abs=1e-3)
        want = stored[f"top_logits_{index}"] - stored[f"logsumexp_{index}"]
        (entry,) = output.outputs[0].logprobs
        known = dict(zip(stored[f"top_ids_{index}"].tolist(), want.tolist()))
        assert len(entry) == 20
        for token, value in entry.items():
            assert value.logprob == pytest.approx(known[token], abs=1e-3)


def test_sa_05_repetition_penalty_is_transformers(smollm: LLM, data_dir: Path) -> None:
    cases = json.loads((data_dir / "penalties.json").read_text(encoding="utf-8"))["cases"]
    outputs = smollm.generate(
        [{"prompt_token_ids": case["prompt"]} for case in cases],
        [
            greedy(
                len(case["token_ids"]),
                ignore_eos=True,
                repetition_penalty=case["repetition_penalty"],
            )
            for case in cases
        ],
        use_tqdm=False,
    )
    for case, output in zip(cases, outputs):
        until = next((at for at, gap in enumerate(case["gaps"]) if gap < 1e-3), len(case["gaps"]))
        assert until > 10
        assert output.outputs[0].token_ids[:until] == case["token_ids"][:until]


def test_ck_03_greedy_tokens_are_transformers(smollm: LLM, data_dir: Path) -> None:
    lines = (data_dir / "w1_reference.jsonl").read_text(encoding="utf-8").splitlines()
    references = [json.loads(line) for line in lines]
    requests = read_workload(data_dir / "w1_offline_mixed.jsonl").requests
    chosen = sorted(
        range(len(requests)),
        key=lambda k: len(requests[k].prompt_token_ids) + 4 * requests[k].max_tokens,
    )[:4]
    outputs = smollm.generate(
        [{"prompt_token_ids": requests[k].prompt_token_ids} for k in chosen],
        [greedy(min(32, requests[k].max_tokens), ignore_eos=True) for k in chosen],
        use_tqdm=False,
    )
    for k, output in zip(chosen, outputs):
        found = output.outputs[0].token_ids
        for token, want, gap in zip(found, references[k]["token_ids"], references[k]["gaps"]):
            if gap < 1e-3:
                break
            assert token == want
