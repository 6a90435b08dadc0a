"""Rows that stand for no token: an embedding or head wider than the tokenizer's vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.gguf_tokenizer import gguf_tokenizer
from paxkv import LLM, SamplingParams
from tests.convert import tiny_models
from tests.text.small_tokenizers import byte_fallback, byte_level

WORDS = byte_level().get_vocab_size()
ROWS = WORDS + 84
PROMPT = [5, 6, 7, 50, 90, 3, 8]
END = 2


def checkpoint(folder: Path, *, tied: bool, rows: int = ROWS) -> Path:
    """A model that would rather give padding than anything else.

    Two opposite rows are padding, longer than all others: one of them always has the best logit.
    """
    weights = {name: 0.3 * array for name, array in tiny_models.tensors(3, tied=tied).items()}
    random = np.random.default_rng(1)
    for name in ["model.embed_tokens.weight"] + ["lm_head.weight"] * (not tied):
        full = 0.3 * random.standard_normal((ROWS, tiny_models.HIDDEN))
        full[WORDS + 4] = 200 * full[0]
        full[WORDS + 5] = -full[WORDS + 4]
        weights[name] = full[:rows].astype(np.float32)
    tiny_models.write_hf(folder, weights, vocab_size=rows)
    byte_level().save(str(folder / "tokenizer.json"))
    return folder


def opened(folder: Path, **options: Any) -> LLM:
    sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "num_gpu_blocks_override": 40}
    return LLM(
        folder,
        deterministic=True,
        enforce_eager=True,
        compilation_cache_dir="",
        max_logprobs=-1,
        **(sizes | options),
    )


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def padded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return opened(checkpoint(tmp_path_factory.mktemp("padded"), tied=request.param))


def answers(llm: LLM, prompt: Any = PROMPT, **fields: Any) -> Any:
    params = SamplingParams(**{"max_tokens": 12, "ignore_eos": True} | fields)
    return llm.generate([prompt], params, use_tqdm=False)[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 50.0, "n": 4, "seed": 1},
        {"temperature": 1.0, "top_k": 400, "top_p": 0.99, "min_p": 1e-9, "n": 2, "seed": 2},
        {"temperature": 0, "use_beam_search": True, "n": 3},
        {"temperature": 0, "repetition_penalty": 1.5, "logit_bias": {5: 1.0}},
        {"temperature": 0, "allowed_token_ids": [WORDS - 1]},
        {"temperature": 0, "structured_outputs": {"regex": "[a-z]{3,9}"}},
    ],
    ids=lambda fields: ", ".join(fields),
)
def test_padding_is_never_sampled(padded: LLM, fields: dict[str, Any]) -> None:
    for completion in answers(padded, **fields).outputs:
        assert completion.token_ids
        assert max(completion.token_ids) < WORDS


def test_padding_counts_in_no_logprob(padded: LLM) -> None:
    """Neither among the alternatives nor in the sum that the probabilities are divided by."""
    output = answers(padded, temperature=0, max_tokens=3, logprobs=-1, prompt_logprobs=-1)
    for alternatives in [*output.prompt_logprobs[1:], *output.outputs[0].logprobs]:
        assert sorted(alternatives) == list(range(WORDS))
        total = sum(np.exp(one.logprob) for one in alternatives.values())
        assert total == pytest.approx(1, abs=1e-4)


def test_a_padded_model_answers_as_the_same_without_padding(padded: LLM, tmp_path: Path) -> None:
    tied = padded.model_config.tie_word_embeddings
    plain = opened(checkpoint(tmp_path, tied=tied, rows=WORDS))
    for fields in ({"temperature": 0, "logprobs": 5}, {"temperature": 1.0, "seed": 3}):
        ours, theirs = (answers(llm, **fields).outputs[0] for llm in (padded, plain))
        assert ours.token_ids == theirs.token_ids
        assert ours.logprobs == theirs.logprobs


def test_ids_of_padding_are_refused(padded: LLM) -> None:
    for prompt in ([5, WORDS], [ROWS - 1], {"prompt_token_ids": [WORDS + 4]}):
        with pytest.raises(ValueError, match=f"ids are integers from 0 to {WORDS - 1}"):
            answers(padded, prompt)
    for fields in (
        {"allowed_token_ids": [WORDS]},
        {"stop_token_ids": [WORDS]},
        {"logit_bias": {WORDS: 1.0}},
    ):
        with pytest.raises(ValueError, match=str(WORDS)):
            answers(padded, **fields)


def test_without_a_tokenizer_the_configuration_counts(tmp_path: Path) -> None:
    llm = opened(checkpoint(tmp_path, tied=False), skip_tokenizer_init=True)
    output = answers(llm, [5, ROWS - 1], temperature=0, logprobs=-1)
    assert set(output.outputs[0].token_ids) <= {WORDS + 4, WORDS + 5}
    assert len(output.outputs[0].logprobs[0]) == ROWS


def test_a_text_of_tokens_the_model_has_no_rows_for_is_refused(tmp_path: Path) -> None:
    """The other way round: gathered beyond its end, an embedding gives its last row."""
    llm = opened(checkpoint(tmp_path, tied=True, rows=WORDS - 20))
    text = byte_level().decode([WORDS - 1])
    assert max(byte_level().encode(text).ids) >= WORDS - 20
    with pytest.raises(ValueError, match=f"embeddings for {WORDS - 20} tokens"):
        answers(llm, text)


def test_tokens_that_a_gguf_file_calls_unused_at_its_end_are_padding() -> None:
    words = sorted(byte_fallback().get_vocab().items(), key=lambda item: item[1])
    tokens = [word for word, _ in words]
    fields = {
        "model": "llama",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "tokens": [*tokens, "[PAD268]", "[PAD269]"],
        "token_type": [1] * len(tokens) + [5, 5],
        "scores": [0.0] * (len(tokens) + 2),
    }
    tokenizer = gguf_tokenizer(
        Path("m.gguf"), {f"tokenizer.ggml.{k}": v for k, v in fields.items()}
    )
    assert tokenizer.vocab_size == len(tokens)
    assert tokenizer.encode("[PAD268]") != [len(tokens)]
