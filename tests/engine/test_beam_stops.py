"""What ends beams: stop strings, and any number of end ids; and how many beams there may be.

Limits that came from a fixed number of candidates, not from the search."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from paxkv.engine.config import EngineConfig
from paxkv.engine.input_processor import InputProcessor
from paxkv.outputs import RequestOutput
from paxkv.sampling.sampling_params import BeamSearchParams, SamplingParams
from paxkv.text.tokenizer import Tokenizer
from tests.engine.beam_cases import CONFIG, END_IDS, PROMPTS, beam_engine, beams, scores
from tests.engine.tiny import Tiny, ids
from tests.regressions.engines import assert_idle

CLOSE = 1e-3


@cache
def letters() -> Backend:
    """A token for each id: a letter, with a second one from 26 on."""
    words = {chr(97 + i % 26) + (chr(96 + i // 26) if i >= 26 else ""): i for i in range(128)}
    backend = Backend(models.BPE(vocab=words, merges=[]))
    backend.decoder = decoders.Fuse()
    return backend


def answer(engine: Tiny, prompt: list[int], params: SamplingParams) -> RequestOutput:
    input_processor = InputProcessor(engine.engine, CONFIG, Tokenizer(letters()))
    request = input_processor.request(prompt, params)
    engine.engine.add(request)
    engine.run()
    return request.output()


@cache
def unstopped(prompt: int, width: int) -> RequestOutput:
    return answer(beam_engine(), PROMPTS[prompt], beams(width, ignore_eos=True))


def stops(prompt: int, width: int) -> list[str]:
    """A string over two tokens in the middle of the best beam, and one token of the second."""
    first, second = (beam.token_ids for beam in unstopped(prompt, width).outputs[:2])
    return [letters().decode(first[4:6]), letters().decode(second[9:10])]


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("width", [2, 8])
@pytest.mark.parametrize("prompt", [0, 2])
def test_a_stop_string_finishes_a_beam(prompt: int, width: int, early_stopping: Any) -> None:
    engine = beam_engine()
    for include in (False, True):
        wanted = stops(prompt, width)
        params = beams(
            width,
            stop=wanted,
            early_stopping=early_stopping,
            include_stop_str_in_output=include,
            length_penalty=0.0,  # short beams rank first
            ignore_eos=True,
        )
        output = answer(engine, PROMPTS[prompt], params)
        reasons = {beam.stop_reason for beam in output.outputs}
        assert reasons & set(wanted)
        for beam in output.outputs:
            whole = letters().decode(beam.token_ids)
            before = letters().decode(beam.token_ids[:-1])
            assert not any(stop in before for stop in wanted), "it went on behind a stop string"
            if beam.stop_reason in wanted:
                assert beam.finish_reason == "stop"
                cut = whole.index(beam.stop_reason) + include * len(beam.stop_reason)
                assert beam.text == whole[:cut]
            else:
                assert not any(stop in whole for stop in wanted)
    assert_idle(engine)


def test_stop_strings_wait_for_min_tokens_and_need_a_tokenizer() -> None:
    wanted = stops(0, 2)
    output = answer(beam_engine(), PROMPTS[0], beams(2, stop=wanted, min_tokens=12))
    assert all(len(beam.token_ids) >= 12 for beam in output.outputs)
    with pytest.raises(ValueError, match="stop=.* needs a tokenizer"):
        beam_engine().input_processor.request(PROMPTS[0], beams(2, stop=wanted))
    params = BeamSearchParams(beam_width=2, max_tokens=16, stop=wanted[0]).sampling_params()
    assert params.stop == (wanted[0],)


def test_thirty_two_beams_need_no_option() -> None:
    assert EngineConfig().max_beam_width >= 32


MANY = tuple(range(3, 128, 3))


@pytest.mark.parametrize("width", [1, 4, 20])
def test_any_number_of_end_ids(width: int) -> None:
    params = beams(width, ignore_eos=True, stop_token_ids=MANY)
    output = answer(beam_engine(), ids(9), params)
    assert len(output.outputs) == width
    for beam in output.outputs:
        assert not set(beam.token_ids[:-1]) & set(MANY)
        assert (beam.token_ids[-1] in MANY) is (beam.finish_reason == "stop")


@pytest.mark.parity
@pytest.mark.parametrize("width", [2, 4, 20])
def test_the_beams_are_those_of_transformers(width: int) -> None:
    """With 20 beams one begins with "a" after a prompt that ends in "n", and "na" is a stop
    string: transformers itself reads the prompt's end too, we (as vLLM) the output alone."""
    import torch

    from tests.engine.transformers_beams import model, search, stops_in_output

    torch.set_num_threads(1)
    engine = beam_engine()
    for index, prompt in enumerate(PROMPTS):
        strings = stops(index, min(width, 8))
        criteria = stops_in_output(letters(), strings, len(prompt))
        for ours, theirs in (
            ({"ignore_eos": True, "stop_token_ids": MANY}, {"end_ids": MANY}),
            ({"stop": strings}, {"stopping_criteria": criteria}),
            (
                {"stop": strings, "ignore_eos": True, "early_stopping": True},
                {"stopping_criteria": criteria, "end_ids": (), "early_stopping": True},
            ),
        ):
            found, true = search(model(), prompt, width, **theirs)
            output = answer(engine, prompt, beams(width, **ours))
            if "stop" in ours:
                found = [trimmed(row, ours, strings) for row in found]
            assert [beam.token_ids for beam in output.outputs] == found
            assert scores(output, 1.0) == pytest.approx(true, abs=CLOSE)


def trimmed(row: list[int], ours: dict[str, Any], strings: list[str]) -> list[int]:
    """Without the padding that transformers puts behind a beam which a string has ended."""
    ends = () if ours.get("ignore_eos") else END_IDS
    for count in range(1, len(row) + 1):
        text = letters().decode(row[:count])
        if row[count - 1] in ends or any(stop in text for stop in strings):
            return row[:count]
    return row
