"""Bug bank, checkpoints: however a model is stored, it says the same."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from convert import load_params, open_checkpoint
from paxkv import LLM, SamplingParams
from tests.convert import tiny_models
from tests.engine import dense_reference, long_rope
from tests.regressions.engines import CLOSE

PROMPT = [5, 6, 7, 50, 90, 3, 8]
NORM = "model.norm.weight"


def weights(seed: int = 0, **kind: Any) -> dict[str, np.ndarray]:
    """Tame enough that no answer is a tie, wild enough that attention matters."""
    return {name: array * 0.3 for name, array in tiny_models.tensors(seed, **kind).items()}


def opened(path: Path, **options: Any) -> LLM:
    given: dict[str, Any] = {"max_num_batched_tokens": 16, "num_gpu_blocks_override": 15} | options
    return LLM(
        path,
        skip_tokenizer_init=True,
        dtype="float32",
        max_num_seqs=2,
        deterministic=True,
        enforce_eager=True,
        compilation_cache_dir="",
        **given,
    )


def answer(path: Path) -> list[int]:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    return opened(path).generate([PROMPT], params, use_tqdm=False)[0].outputs[0].token_ids


def assert_dense(path: Path, found: list[int]) -> None:
    checkpoint = open_checkpoint(path)
    params = load_params(checkpoint, np.dtype("float32"), put=lambda array: array)
    want, gaps = dense_reference.greedy(params, checkpoint.config, PROMPT, len(found))
    until = next((at for at, gap in enumerate(gaps) if gap < CLOSE), len(found))
    assert until > 3
    assert found[:until] == want[:until]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    folder = tiny_models.write_hf(tmp_path_factory.mktemp("reference"), weights())
    found = answer(folder)
    assert_dense(folder, found)
    return found


def test_ck_01_a_tied_head_is_the_embedding_and_an_untied_one_is_not(
    tmp_path: Path, reference: list[int]
) -> None:
    assert open_checkpoint(
        tiny_models.write_hf(tmp_path / "tied", weights())
    ).config.tie_word_embeddings
    untied = tiny_models.write_hf(tmp_path / "untied", weights(tied=False))
    found = answer(untied)
    assert found != reference
    assert_dense(untied, found)


@pytest.mark.parametrize(
    "name", [NORM, "model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight"]
)
def test_ck_01_a_tensor_that_is_missing_is_named_at_start(tmp_path: Path, name: str) -> None:
    found = weights()
    del found[name]
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        opened(tiny_models.write_hf(tmp_path, found))


def test_ck_03_a_gguf_file_answers_as_the_original(tmp_path: Path, reference: list[int]) -> None:
    assert answer(tiny_models.write_gguf(tmp_path / "m.gguf", weights())) == reference
    scrambled = tiny_models.write_gguf(
        tmp_path / "wrong.gguf", weights(), heads_of_k=tiny_models.HEADS
    )
    assert answer(scrambled) != reference, "this prompt would not notice the order of rows"


def test_ck_04_rope_factors_of_one_change_nothing(tmp_path: Path, reference: list[int]) -> None:
    factors = {"rope_freqs.weight": np.ones(tiny_models.HEAD_DIM // 2, np.float32)}
    path = tiny_models.write_gguf(tmp_path / "m.gguf", weights(), extra=factors)
    assert answer(path) == reference


def test_ck_05_unknown_rope_types_and_longer_lengths_are_refused(tmp_path: Path) -> None:
    strange = {"rope_type": "zzz", "factor": 2.0}
    with pytest.raises(ValueError, match="zzz"):
        opened(tiny_models.write_hf(tmp_path / "a", weights(), rope_scaling=strange))
    folder = tiny_models.write_hf(
        tmp_path / "b", weights(), rope_scaling={"type": "linear", "factor": 2.0}
    )
    with pytest.raises(ValueError, match="max_model_len=513 must be at most 512"):
        LLM(folder, skip_tokenizer_init=True, max_model_len=513, compilation_cache_dir="")


def assert_long_scores(folder: Path, name: str, want: list[float]) -> None:
    """Prompt scores of the engine, in chunks, most of them beyond the original length."""
    llm = opened(long_rope.write(folder, name), max_num_batched_tokens=64)
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    (output,) = llm.generate([long_rope.PROMPT], params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    scores = [
        entry[token].logprob
        for entry, token in zip(output.prompt_logprobs[1:], long_rope.PROMPT[1:], strict=True)
    ]
    np.testing.assert_allclose(scores, want, atol=CLOSE)
    with pytest.raises(ValueError, match="max_model_len=257 must be at most 256"):
        opened(folder, max_model_len=257)


@pytest.mark.parametrize("name", long_rope.CASES)
def test_ck_05_scores_beyond_the_original_length_are_transformers(
    name: str, tmp_path: Path, data_dir: Path
) -> None:
    stored = json.loads((data_dir / "long_rope.json").read_text(encoding="utf-8"))
    assert_long_scores(tmp_path, name, stored["cases"][name])


@pytest.mark.parity
@pytest.mark.parametrize("name", long_rope.CASES)
def test_ck_05_scores_are_transformers_now(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    reference = importlib.import_module("tests.data.make_long_rope_reference")
    assert_long_scores(tmp_path, name, reference.logprobs(name))


def test_ck_07_shards_answer_as_one_file(tmp_path: Path, reference: list[int]) -> None:
    folder = tiny_models.write_hf(tmp_path, weights(), shards=3)
    noise = {NORM: np.full(tiny_models.HIDDEN, 9, np.float32)}
    save_file(noise, folder / "consolidated.safetensors")
    third = folder / tiny_models.shard_name(3, 3)
    assert NORM not in load_file(third)
    save_file(load_file(third) | noise, third)
    assert answer(folder) == reference


def test_st_04_every_end_id_of_the_generation_config_ends(tmp_path: Path) -> None:
    folder = tiny_models.write_hf(tmp_path, weights(), generation={"eos_token_id": [2, 7]})
    llm = opened(folder)
    llm.engine.runner.hooks.logits = lambda request, child, at: wanted[min(at, 1)]

    def found(**fields: Any) -> Any:
        params = SamplingParams(temperature=0, max_tokens=9, **fields)
        return llm.generate([PROMPT], params, use_tqdm=False)[0].outputs[0]

    for end in (2, 7):
        wanted = [50, end]
        plain = found()
        assert (plain.token_ids, plain.finish_reason) == ([50, end], "stop")
        assert plain.stop_reason is None
        assert found(ignore_eos=True).token_ids == [50, *[end] * 8]
        mine = found(ignore_eos=True, stop_token_ids=[end])
        assert (mine.token_ids, mine.stop_reason) == ([50, end], end)


def test_st_04_no_end_id_is_drawn_before_min_tokens(tmp_path: Path) -> None:
    folder = tiny_models.write_hf(tmp_path, weights(), generation={"eos_token_id": [2, 7]})
    params = SamplingParams(
        temperature=0, max_tokens=9, min_tokens=7, logit_bias={2: 1e5, 7: 1e6, 50: 1e4}
    )
    (output,) = opened(folder).generate([PROMPT], params, use_tqdm=False)
    assert output.outputs[0].token_ids == [*[50] * 7, 7]


def test_ck_07_a_missing_a_short_and_a_misshaped_shard_are_named(tmp_path: Path) -> None:
    second = tiny_models.shard_name(2, 3)
    folder = tiny_models.write_hf(tmp_path / "missing", weights(), shards=3)
    (folder / second).unlink()
    with pytest.raises(ValueError, match="00002"):
        opened(folder)
    folder = tiny_models.write_hf(tmp_path / "short", weights(), shards=3)
    os.truncate(folder / second, (folder / second).stat().st_size // 2)
    with pytest.raises(ValueError, match="00002"):
        opened(folder)
    found = weights()
    found[NORM] = found[NORM].reshape(2, -1)
    with pytest.raises(ValueError, match=r"model\.norm\.weight"):
        opened(tiny_models.write_hf(tmp_path / "shape", found))
