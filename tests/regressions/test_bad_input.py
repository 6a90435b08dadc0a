"""Every wrong argument is a ValueError naming it, before any work, and the engine serves on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from paxkv import LLM, SamplingParams
from paxkv.engine.config import EngineConfig
from tests.convert import tiny_models
from tests.engine.tiny import greedy, ids
from tests.regressions.engines import assert_idle, small

NOWHERE = "/nowhere/at/all"


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


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("max_model_len", 0),
        ("max_model_len", 1.5),
        ("block_size", 0),
        ("block_size", 257),
        ("block_size", "16"),
        ("block_size", None),
        ("num_gpu_blocks_override", 0),
        ("num_gpu_blocks_override", True),
        ("kv_cache_memory_bytes", -1),
        ("gpu_memory_utilization", 0),
        ("gpu_memory_utilization", 1.01),
        ("gpu_memory_utilization", float("nan")),
        ("gpu_memory_utilization", "0.9"),
        ("max_num_seqs", 0),
        ("max_num_batched_tokens", -5),
        ("max_logprobs", -2),
        ("max_logprobs", None),
        ("max_beam_width", None),
        ("max_num_partial_prefills", None),
        ("long_prefill_token_threshold", None),
        ("layers_per_program", 0),
        ("seed", 1.0),
        ("seed", None),
        ("dtype", "float8"),
        ("dtype", 32),
        ("kv_cache_dtype", "int4"),
        ("enable_chunked_prefill", 1),
        ("enable_prefix_caching", "yes"),
        ("enforce_eager", None),
        ("deterministic", 0),
        ("compilation_cache_dir", 5),
        ("revision", 5),
        ("block_sizes", 16),
    ],
)
def test_engine_options(name: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=name):
        LLM(NOWHERE, **{name: wrong})


def test_numpy_numbers_are_numbers() -> None:
    options = EngineConfig(
        block_size=np.int64(8), seed=np.int32(3), swap_space=np.float32(0.5), max_num_seqs=None
    )
    assert options == EngineConfig(block_size=8, seed=3, swap_space=0.5)
    assert {type(options.block_size), type(options.seed), type(options.swap_space)} == {int, float}


@pytest.mark.parametrize("name", ["num_gpu_blocks_override", "kv_cache_memory_bytes"])
def test_pages_that_no_machine_holds_are_refused_before_they_are_made(
    tmp_path: Path, name: str
) -> None:
    folder = tiny_models.write_hf(tmp_path, tiny_models.tensors())
    with pytest.raises(ValueError, match=f"{name}=10+ takes .* GiB for the cache; this machine"):
        LLM(folder, skip_tokenizer_init=True, compilation_cache_dir="", **{name: 10**18})


@pytest.mark.parametrize(
    "name, what", [("max_num_seqs", "logits"), ("max_num_batched_tokens", "one layer")]
)
@pytest.mark.parametrize("eager", [False, True])
def test_steps_that_no_machine_holds_are_refused(
    tmp_path: Path, name: str, what: str, eager: bool
) -> None:
    folder = tiny_models.write_hf(tmp_path, tiny_models.tensors())
    options = {"enforce_eager": eager, "compilation_cache_dir": "", name: 10**12}
    with pytest.raises(ValueError, match=f"{name}=10+ takes .* GiB for {what}; this machine"):
        LLM(folder, skip_tokenizer_init=True, **options)


def test_options_that_contradict_each_other_are_refused_before_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_models.write_hf(tmp_path, tiny_models.tensors())

    def load_nothing(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("weights were read first")

    monkeypatch.setattr("convert.load_params", load_nothing)
    for options, message in (
        ({"max_model_len": 257}, "max_model_len=257.*256"),
        ({"max_num_seqs": 9, "max_num_batched_tokens": 8}, "max_num_batched_tokens=8.*9"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 64},
            "max_num_batched_tokens=64.*256",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            LLM(folder, skip_tokenizer_init=True, compilation_cache_dir="", **options)


@pytest.mark.parametrize("model", [NOWHERE, "", 5, None, "no-such-model/at:all"])
def test_model(model: Any) -> None:
    with pytest.raises(ValueError):
        LLM(model, compilation_cache_dir="")


@pytest.mark.parametrize(
    "prompts, message",
    [
        (None, "prompts"),
        (5, "prompts"),
        (object(), "prompts"),
        (b"bytes", "bytes"),
        ("text", "no tokenizer"),
        ([""], "no tokenizer|empty"),
        ([[]], "prompt 0.*empty"),
        ([[1, 2], []], "prompt 1.*empty"),
        ([[1, 2], [3, None]], "prompt 1.*None"),
        ([[1, 2], [[3]]], r"prompt 1.*\[3\]"),
        ([1, 2, 96], "prompt_token_ids contains 96.*95"),
        ([1, 2.5], "2.5|list"),
        ({}, 'needs "prompt"'),
        ({"prompt": None}, 'needs "prompt"'),
        ({"prompt_token_ids": "12"}, "prompt_token_ids.*str"),
        ({"prompt_token_ids": None}, "prompt_token_ids.*NoneType"),
        ({"prompt_token_ids": {1, 2}}, "prompt_token_ids.*set"),
        ({"prompt_token_ids": [1], "prompt": 5}, "prompt.*int"),
        ({"prompt_token_ids": [1], "cache_salt": 5}, "cache_salt.*5"),
        ({"prompt_token_ids": [1], "multi_modal_data": {}}, "multi_modal_data"),
        ([None], "prompt 0.*NoneType"),
        (list(range(3, 90)) * 3, "261 tokens"),
    ],
)
def test_prompts(llm: LLM, prompts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        llm.generate(prompts, SamplingParams(max_tokens=2), use_tqdm=False)
    assert not llm.engine.has_work
    assert len(llm.generate([[5, 6]], SamplingParams(max_tokens=2), use_tqdm=False)) == 1


@pytest.mark.parametrize("wrong", [5, "greedy", {"temperature": 0}, [], [None], [{}], False])
def test_sampling_params_of_a_wrong_kind(llm: LLM, wrong: Any) -> None:
    with pytest.raises(ValueError, match="sampling_params"):
        llm.generate([[5, 6]], wrong, use_tqdm=False)
    assert not llm.engine.has_work


def test_one_sampling_params_for_each_prompt(llm: LLM) -> None:
    with pytest.raises(ValueError, match="2 sampling_params for 1 prompts"):
        llm.generate([[5]], [SamplingParams()] * 2, use_tqdm=False)


@pytest.mark.parametrize("name", ["n", "best_of"])
def test_more_children_than_sequences(llm: LLM, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=5 must be at most max_num_seqs=4"):
        llm.generate([[5]], SamplingParams(**{name: 5}), use_tqdm=False)


def test_what_needs_a_tokenizer_is_refused_without_one(llm: LLM) -> None:
    for name in ("stop", "bad_words"):
        with pytest.raises(ValueError, match=f"{name}.*needs a tokenizer"):
            llm.generate([[5]], SamplingParams(**{name: ["x"]}), use_tqdm=False)
    with pytest.raises(ValueError, match="no tokenizer"):
        llm.chat([{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(
    "messages", [None, 5, "Hi", [], {}, {"role": "user"}, [None], [[]], ["Hi"]]
)
def test_messages(llm: LLM, messages: Any) -> None:
    with pytest.raises(ValueError):
        llm.chat(messages)


def test_one_bad_prompt_is_named_before_any_work(llm: LLM) -> None:
    steps = llm.stats().num_steps
    with pytest.raises(ValueError, match="prompt 2: .*empty"):
        llm.generate([[5], [6], [], [7]], SamplingParams(max_tokens=2), use_tqdm=False)
    assert llm.stats().num_steps == steps
    assert not llm.engine.has_work


@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_ids_in_arrays_are_ids(llm: LLM, array: Any) -> None:
    chosen = SamplingParams(temperature=0, max_tokens=3)
    plain = llm.generate([[5, 6, 7]], chosen, use_tqdm=False)[0].outputs[0].token_ids
    one, several, scalars = array([5, 6, 7]), array([[5, 6, 7]]), [array(i) for i in (5, 6, 7)]
    for prompts in (one, [one], several, {"prompt_token_ids": one}, [scalars]):
        assert llm.generate(prompts, chosen, use_tqdm=False)[0].outputs[0].token_ids == plain
    for wrong in (array([5.0, 6.0]), array([True]), array(5), [array([[5]])]):
        with pytest.raises(ValueError, match="prompt"):
            llm.generate(wrong, chosen, use_tqdm=False)
    assert not llm.engine.has_work


def test_streaming_cannot_rank(llm: LLM) -> None:
    with pytest.raises(ValueError, match="best_of=3"):
        next(llm.stream([5], SamplingParams(n=1, best_of=3)))
    assert not llm.engine.has_work


def test_streams_side_by_side_and_generate_in_between(llm: LLM) -> None:
    chosen = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1)
    alone = [llm.generate([[k, 6]], chosen, use_tqdm=False)[0].outputs[0].token_ids for k in (5, 9)]
    a, b = llm.stream([5, 6], chosen), llm.stream([9, 6], chosen)
    last = [next(a), next(b)]
    assert len(last[0].outputs[0].logprobs) == len(last[0].outputs[0].token_ids)
    llm.generate([[7]], chosen, use_tqdm=False)
    first = [output.outputs[0].token_ids for output in last]
    for place, stream in enumerate((a, b)):
        for output in stream:
            last[place] = output
    assert [output.outputs[0].token_ids for output in last] == alone
    assert all(output.finished for output in last)
    assert [tokens == want[: len(tokens)] for tokens, want in zip(first, alone)] == [True, True]
    assert not llm.engine.has_work


def test_leaving_a_stream_early_frees_everything(llm: LLM) -> None:
    for output in llm.stream([5, 6], SamplingParams(max_tokens=100, ignore_eos=True)):
        if len(output.outputs[0].token_ids) >= 2:
            break
    stats = llm.stats()
    assert (stats.running, stats.waiting, stats.free_blocks) == (0, 0, stats.num_blocks)


def test_refusals_leave_the_engine_as_it_was() -> None:
    tiny = small()
    for wrong in ([], [500], ids(600)):
        with pytest.raises(ValueError):
            tiny.request(wrong, greedy(2))
    assert_idle(tiny)
    tiny.add(ids(3), greedy(4), request_id="x")
    with pytest.raises(ValueError, match="request_id='x' is in use"):
        tiny.add(ids(3), greedy(4), request_id="x")
    tiny.run()
    assert_idle(tiny)
