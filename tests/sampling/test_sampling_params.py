"""Every wrong argument is a ValueError naming the argument, its value and the range."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from paxkv.sampling.sampling_params import BeamSearchParams, SamplingParams

NAN, INF = float("nan"), float("inf")
NOT_NUMBERS = (True, "1", None, [], NAN, INF, -INF, 10**400)
NOT_INTEGERS = (True, "1", 1.0, [], NAN, INF, 2**80)

WRONG = {
    "n": (*NOT_INTEGERS, None, 0, -1, 16_385),
    "best_of": (*NOT_INTEGERS, 0, -1),
    "presence_penalty": (*NOT_NUMBERS, -2.1, 2.1),
    "frequency_penalty": (*NOT_NUMBERS, -2.1, 2.1),
    "repetition_penalty": (*NOT_NUMBERS, 0, -1, 0.0, 1e-300),
    "temperature": (*NOT_NUMBERS, -1, -1e-9),
    "top_p": (*NOT_NUMBERS, -0.1, 1.1),
    "top_k": (*NOT_INTEGERS, None, -2),
    "min_p": (*NOT_NUMBERS, -0.1, 1.1),
    "top_n_sigma": (True, "1", [], NAN, INF, -INF, 10**400, 1e7),
    "seed": (True, "1", 1.0, NAN, 2**64, -(2**63) - 1),
    "stop": (1, True, "", [""], [1], ["a", None], {"a": 1}),
    "stop_token_ids": (1, "12", [-1], [2**31], [1.0], [True], ["1"], {1: 2}),
    "bad_words": (1, "word", [""], [None]),
    "include_stop_str_in_output": (1, "yes", None),
    "ignore_eos": (1, "yes", None),
    "max_tokens": (*NOT_INTEGERS, 0, -1),
    "min_tokens": (*NOT_INTEGERS, None, -1, 17),
    "logprobs": (*NOT_INTEGERS, -2),
    "prompt_logprobs": (*NOT_INTEGERS, -2),
    "detokenize": (1, None),
    "skip_special_tokens": (0, None),
    "logit_bias": (1, [(1, 2)], {"1": 2}, {-1: 1}, {2**63: 1}, {1: NAN}, {1: INF}, {1: "x"}),
    "allowed_token_ids": (1, [], "1", [-1], [1.5], [2**63]),
    "priority": (*NOT_INTEGERS, None),
    "enable_prefix_caching": (1, "no"),
    "use_beam_search": (1, "yes", None),
    "length_penalty": (*NOT_NUMBERS, 101, 2.0),
    "early_stopping": ("always", 1, None, True, "never"),
    "structured_outputs": ("json", 3, {}, {"xml": 1}, {"regex": 7}, {"json": "{"}),
}


def test_every_field_has_wrong_values():
    assert set(WRONG) == {field.name for field in dataclasses.fields(SamplingParams)}


@pytest.mark.parametrize(
    "name, value", [(name, value) for name, values in WRONG.items() for value in values]
)
def test_wrong_values_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name) as refusal:
        SamplingParams(**{name: value})
    message = str(refusal.value)
    assert "must be" in message
    assert "got" in message
    assert len(message) < 250


def test_huge_values_are_abbreviated():
    with pytest.raises(ValueError, match="10000 characters"):
        SamplingParams(temperature="x" * 10_000)
    with pytest.raises(ValueError, match=r"logit_bias .* 1024 .* 2000 entries"):
        SamplingParams(logit_bias=dict.fromkeys(range(2000), 1.0))
    SamplingParams(logit_bias=dict.fromkeys(range(1024), 1.0))


def test_fields_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match=r"min_tokens .*max_tokens=3.* 9"):
        SamplingParams(min_tokens=9, max_tokens=3)
    with pytest.raises(ValueError, match=r"best_of .*n=3.* 2"):
        SamplingParams(n=3, best_of=2)
    with pytest.raises(ValueError, match="stop .*detokenize=False"):
        SamplingParams(stop="a", detokenize=False)
    SamplingParams(min_tokens=9, max_tokens=None)


def test_stored_forms():
    params = SamplingParams(
        stop="end",
        n=np.int64(2),
        temperature=np.float32(0.5),
        logit_bias={np.int32(3): 1},
        stop_token_ids=np.array([4, 5]),
        allowed_token_ids=[7],
    )
    assert params.stop == ("end",)
    assert (type(params.n), type(params.temperature)) == (int, float)
    assert params.logit_bias == {3: 1.0}
    assert params.stop_token_ids == (4, 5)
    assert SamplingParams(seed=-1).seed is None
    assert SamplingParams(seed=2**64 - 1).seed == 2**64 - 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.n = 3
    with pytest.raises(TypeError):
        SamplingParams(1)


@pytest.mark.parametrize(
    "fields, greedy",
    [
        ({"temperature": 0}, True),
        ({"temperature": 9e-6}, True),
        ({"temperature": 1e-5}, False),
        ({"top_k": 1}, True),
        ({"top_p": 0}, True),
        ({"top_k": 0}, False),
        ({"top_k": -1}, False),
        ({}, False),
    ],
)
def test_greedy(fields, greedy):
    assert SamplingParams(**fields).greedy is greedy


@pytest.mark.parametrize("bad", [-1, 100, 2**31, 2**63])
@pytest.mark.parametrize("field", ["stop_token_ids", "allowed_token_ids", "logit_bias"])
def test_ids_are_checked_against_the_output_width(field, bad):
    def check(token):
        ids = {token: 5} if field == "logit_bias" else [token]
        SamplingParams(**{field: ids}).validate_for(100)

    with pytest.raises(ValueError, match=field):
        check(bad)
    check(0)
    check(99)


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_logprobs_are_limited_by_the_engine(field):
    SamplingParams(**{field: 20}).validate_for(100, max_logprobs=20)
    SamplingParams(**{field: -1}).validate_for(100, max_logprobs=-1)
    for wanted, limit in ((21, 20), (-1, 20), (101, -1), (101, 200)):
        with pytest.raises(ValueError, match=field):
            SamplingParams(**{field: wanted}).validate_for(100, max_logprobs=limit)


@pytest.mark.parametrize(
    "name, value",
    [
        ("temperature", 1.0),
        ("top_p", 0.9),
        ("top_k", 1),
        ("min_p", 0.1),
        ("top_n_sigma", 1.0),
        ("logprobs", 0),
    ],
)
def test_what_beams_have_no_meaning_for_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be .* when use_beam_search=True"):
        SamplingParams(**{"use_beam_search": True, "temperature": 0, name: value})


def test_beam_params_are_an_ordinary_requests_parameters():
    params = BeamSearchParams(
        beam_width=3,
        max_tokens=5,
        ignore_eos=True,
        length_penalty=2,
        early_stopping="never",
        include_stop_str_in_output=True,
    ).sampling_params()
    assert params == SamplingParams(
        use_beam_search=True,
        n=3,
        max_tokens=5,
        ignore_eos=True,
        temperature=0,
        length_penalty=2.0,
        early_stopping="never",
        include_stop_str_in_output=True,
    )


WRONG_BEAMS = {
    "beam_width": (0, -1, True, "2", 1.5, 10**9),
    "max_tokens": (0, None, True),
    "length_penalty": (NAN, INF, "1", True),
    "early_stopping": ("always", 1, None),
    "temperature": (0.5, NAN, True),
    "ignore_eos": (1,),
    "include_stop_str_in_output": ("no",),
    "stop": (1, "", [""], {"a": 1}),
}


@pytest.mark.parametrize(
    "name, value", [(name, value) for name, values in WRONG_BEAMS.items() for value in values]
)
def test_wrong_beam_values_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"{name} must be"):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, name: value})


def test_beam_params():
    params = BeamSearchParams(beam_width=4, max_tokens=8, early_stopping="never")
    assert (params.beam_width, params.length_penalty, params.temperature) == (4, 1.0, 0.0)


def test_params_do_not_import_jax():
    code = (
        "import sys, paxkv.sampling.sampling_params, paxkv.outputs; sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
