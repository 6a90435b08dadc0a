"""Bug bank, beam search."""

from __future__ import annotations

from typing import Any

import pytest

from paxkv import LLM, BeamSearchParams, SamplingParams
from tests.convert import tiny_models

PROMPT = {"prompt_token_ids": [5, 9, 40, 3]}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tiny_models.write_hf(tmp_path_factory.mktemp("tiny"), tiny_models.tensors())
    return LLM(
        folder,
        skip_tokenizer_init=True,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        num_gpu_blocks_override=30,
        deterministic=True,
        enforce_eager=True,
        compilation_cache_dir="",
    )


def test_bs_01_beam_search_gives_the_beams_of_each_prompt_best_first(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=6, length_penalty=0.0)
    other = {"prompt_token_ids": [7, 8]}
    found = llm.beam_search([PROMPT, other], params, use_tqdm=False)
    assert [output.prompt_token_ids for output in found] == [[5, 9, 40, 3], [7, 8]]
    for output in found:
        ranks = [beam.cumulative_logprob for beam in output.outputs]
        assert ranks == sorted(ranks, reverse=True)
        assert len({tuple(beam.token_ids) for beam in output.outputs}) == 3
        assert [beam.index for beam in output.outputs] == [0, 1, 2]
    asked = SamplingParams(
        use_beam_search=True, n=3, temperature=0, max_tokens=6, length_penalty=0.0
    )
    again = llm.generate([PROMPT, other], asked, use_tqdm=False)
    assert [o.outputs for o in again] == [o.outputs for o in found]


def test_beams_are_refused_where_they_cannot_be(llm: LLM) -> None:
    beams = SamplingParams(use_beam_search=True, n=2, temperature=0)
    with pytest.raises(ValueError, match="use_beam_search must be False in a stream"):
        llm.stream(PROMPT, beams)
    with pytest.raises(ValueError, match="beam_width"):
        llm.beam_search(PROMPT, BeamSearchParams(beam_width=17, max_tokens=4))
    with pytest.raises(ValueError, match="max_num_seqs=4"):
        llm.beam_search(PROMPT, BeamSearchParams(beam_width=5, max_tokens=4))
    with pytest.raises(ValueError, match="params must be BeamSearchParams, got SamplingParams"):
        llm.beam_search(PROMPT, beams)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="prompt 1: "):
        llm.beam_search([PROMPT, []], BeamSearchParams(beam_width=2, max_tokens=4))
    assert llm.stats().used_blocks == 0


def test_text_of_beams(smollm: LLM) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=5)
    (output,) = smollm.beam_search("The capital of France is", params, use_tqdm=False)
    tokenizer = smollm.get_tokenizer()
    for beam in output.outputs:
        assert beam.text == tokenizer.decode(beam.token_ids)
    assert "Paris" in output.outputs[0].text


@pytest.mark.parity
@pytest.mark.parametrize(
    "width, penalty, stopping",
    [(2, 0.0, False), (4, 1.0, True), (4, 2.0, False), (3, 1.0, "never")],
)
def test_bs_01_the_real_model_against_transformers(
    smollm: LLM, width: int, penalty: float, stopping: Any
) -> None:
    import torch

    from convert import open_checkpoint
    from paxkv.bench.transformers_model import build_transformers_model
    from tests.engine.transformers_beams import search

    torch.set_num_threads(2)
    checkpoint = open_checkpoint("smollm2-135m")
    ids = checkpoint.tokenizer().encode("Answer in one word. The capital of France is")
    params = BeamSearchParams(
        beam_width=width, max_tokens=24, length_penalty=penalty, early_stopping=stopping
    )
    (output,) = smollm.beam_search({"prompt_token_ids": ids}, params, use_tqdm=False)
    ends = tuple(smollm.input_processor._eos_token_ids)
    found, scores = search(
        build_transformers_model(checkpoint),
        ids,
        width,
        24,
        ends,
        length_penalty=penalty,
        early_stopping=stopping,
    )
    assert [beam.token_ids for beam in output.outputs] == found
    ours = [b.cumulative_logprob / len(b.token_ids) ** penalty for b in output.outputs]
    assert ours == pytest.approx(scores, abs=1e-3)
