"""Answers of the real model within a form, beside others that have none."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from paxkv import LLM, SamplingParams, StructuredOutputsParams
from tests.engine.tiny import Tiny, greedy

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROMPT = "A person:"


def within(form: dict[str, Any], **options: Any) -> SamplingParams:
    options = {"temperature": 0.9, "seed": 11, "max_tokens": 60} | options
    return SamplingParams(structured_outputs=StructuredOutputsParams(**form), **options)


def test_every_answer_has_its_form_and_the_others_keep_theirs(smollm: LLM) -> None:
    plain = SamplingParams(temperature=0.9, seed=5, max_tokens=12)
    alone = smollm.generate([PROMPT], plain, use_tqdm=False)[0].outputs[0].token_ids
    params = [
        within({"json": SCHEMA}),
        within({"regex": "[0-9]{2,4} years"}, temperature=0),
        within({"choice": ["red", "green", "blue"]}, n=3),
        plain,
    ]
    found = smollm.generate([PROMPT] * 4, params, use_tqdm=False)
    person = json.loads(found[0].outputs[0].text)
    assert set(person) == {"name", "age"}
    assert isinstance(person["age"], int)
    assert len(person["name"]) <= 8
    assert re.fullmatch("[0-9]{2,4} years", found[1].outputs[0].text)
    assert {output.text for output in found[2].outputs} <= {"red", "green", "blue"}
    for result in found[:3]:
        assert {output.finish_reason for output in result.outputs} == {"stop"}
    assert found[3].outputs[0].token_ids == alone


def test_a_form_is_cut_by_max_tokens_and_says_so(smollm: LLM) -> None:
    (found,) = smollm.generate([PROMPT], within({"json": SCHEMA}, max_tokens=3), use_tqdm=False)
    assert found.outputs[0].finish_reason == "length"
    assert found.outputs[0].text.startswith("{")


def test_a_greedy_answer_is_the_most_likely_one_within_the_form(smollm: LLM) -> None:
    """Each token is the best of those that a regular expression of single letters leaves."""
    form = within({"regex": "[a-z]{4}"}, temperature=0, logprobs=20)
    (found,) = smollm.generate(['The word is "'], form, use_tqdm=False)
    assert re.fullmatch("[a-z]{4}", found.outputs[0].text)
    tokenizer = smollm.get_tokenizer()
    known = ""
    for token, alternatives in zip(found.outputs[0].token_ids, found.outputs[0].logprobs or []):
        fitting = [
            entry.logprob
            for other, entry in alternatives.items()
            if re.fullmatch("[a-z]{1,4}", known + tokenizer.decode([other]))
        ]
        assert alternatives[token].logprob == max(fitting)
        known += tokenizer.decode([token])


def test_form_and_bans_that_leave_nothing_end_that_request_alone(smollm: LLM) -> None:
    form = within({"choice": ["7"]}, allowed_token_ids=[5])
    plain = SamplingParams(temperature=0, max_tokens=4)
    with pytest.warns(UserWarning, match="structured_outputs together left none"):
        found = smollm.generate([PROMPT, PROMPT], [form, plain], use_tqdm=False)
    assert [result.outputs[0].finish_reason for result in found] == ["error", "length"]


def test_an_engine_without_a_tokenizer_refuses_forms() -> None:
    form = replace(greedy(4), structured_outputs={"regex": "a"})
    with pytest.raises(ValueError, match="structured_outputs needs a tokenizer"):
        Tiny().request([5, 6], form)
