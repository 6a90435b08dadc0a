"""Keys and values in one byte each: what the engine computes from them, and that they survive."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from paxkv.engine import build as assembly
from paxkv.engine.build import resolve_dtype
from paxkv.sampling.sampling_params import SamplingParams
from tests.engine import dense_reference
from tests.engine.tiny import CONFIG, Tiny, greedy, ids, params

# Few pages and small steps: requests are preempted, prompts come in chunks.
TIGHT: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 16,
    "max_model_len": 64,
    "deterministic": True,
}
NAMES = ("int8", "fp8", "fp8_e5m2")


def rounded(x: np.ndarray, name: str) -> np.ndarray:
    """Keys or values `[tokens, heads, head_dim]` as they come back from pages of this type."""
    kind = resolve_dtype(name, None)
    most = 127 if name == "int8" else float(ml_dtypes.finfo(kind).max)
    factor = np.abs(x).max(-1, keepdims=True) / most
    numbers = x / factor
    return (np.rint(numbers) if name == "int8" else numbers.astype(kind).astype(float)) * factor


@cache
def prompt_logprobs(name: str, backend: str = "xla") -> np.ndarray:
    """Of a prompt's tokens, by an engine."""
    tiny = Tiny(kv_cache_dtype=name, attention_backend=backend, **TIGHT)
    sampling = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    (output,) = tiny.generate([PROMPT], sampling)
    entries = zip(PROMPT[1:], (output.prompt_logprobs or [])[1:])
    return np.array([entry[token].logprob for token, entry in entries if entry is not None])


PROMPT = ids(60)


def dense(kept: Any = np.asarray) -> np.ndarray:
    """The same in float64."""
    logits = dense_reference.all_logits(params(), CONFIG, PROMPT, kept)[:-1]
    top = logits.max(-1, keepdims=True)
    total = top + np.log(np.exp(logits - top).sum(-1, keepdims=True))
    return np.take_along_axis(logits - total, np.array(PROMPT[1:])[:, None], axis=1)[:, 0]


@pytest.mark.parametrize("name", NAMES)
def test_pages_hold_what_rounding_leaves_of_keys_and_values(name: str) -> None:
    found = prompt_logprobs(name)
    assert len(found) == len(PROMPT) - 1
    want = dense(partial(rounded, name=name))
    # Where float32 and float64 round one number to different sides, a step of it remains.
    assert np.abs(found - want).max() < 0.5 * np.abs(want - dense()).max()
    assert np.median(np.abs(found - want)) < 0.02 * np.abs(want - dense()).max()


def test_int8_is_close_to_float32_and_8_bit_floats_less_so() -> None:
    exact = prompt_logprobs("float32")
    int8, e4m3, e5m2 = (np.abs(prompt_logprobs(name) - exact).mean() for name in NAMES)
    assert 0 < int8 < e4m3 < e5m2
    assert int8 < 0.05


def test_triton_reads_and_writes_the_same_bytes() -> None:
    apart = np.abs(prompt_logprobs("int8", "triton") - prompt_logprobs("int8"))
    assert np.median(apart) < 1e-4


def answers(**options: Any) -> tuple[list[list[list[int]]], Any]:
    """Token ids of every sequence of every request, and the engine's figures."""
    tiny = Tiny(**(TIGHT | options))
    common = ids(9)
    prompts = [common + ids(length, salt=length) for length in (1, 4, 7, 11)]
    prompts += [ids(13, salt=1), ids(3, salt=2)]
    fork = SamplingParams(n=2, temperature=0.8, seed=5, max_tokens=6, ignore_eos=True)
    each: list[SamplingParams] = [greedy(10)] * 5 + [fork]
    outputs = tiny.generate(prompts, each) + tiny.generate(prompts[:2], greedy(3))
    return [[list(o.token_ids) for o in output.outputs] for output in outputs], tiny.engine.stats()


@pytest.mark.parametrize("name", ["int8", pytest.param("fp8", marks=pytest.mark.full)])
def test_preemption_swaps_forks_and_prefix_hits_are_invisible(name: str) -> None:
    want, ample = answers(kv_cache_dtype=name, enable_prefix_caching=False)
    assert ample.preemptions == ample.prefix_cache_hits == 0
    tight = {"kv_cache_dtype": name, "num_gpu_blocks_override": 13}
    got, stats = answers(**tight)
    assert got == want
    assert min(stats.preemptions, stats.cow_copies, stats.prefix_cache_hits) > 0
    got, stats = answers(**tight, num_cpu_blocks_override=40, preemption_mode="swap")
    assert got == want
    assert stats.swap_bytes_in > 0


def test_a_byte_holds_twice_as_many_tokens_less_the_factors() -> None:
    half, one = (
        Tiny(kv_cache_dtype=name, num_gpu_blocks_override=None, kv_cache_memory_bytes=1 << 20)
        for name in ("bfloat16", "int8")
    )
    # Eight dimensions: 16 bytes, or 8 and a factor of 4.
    found = one.engine.stats().num_blocks / half.engine.stats().num_blocks
    assert found == pytest.approx(16 / 12, rel=0.15)


def test_a_back_end_that_does_not_know_them_says_so() -> None:
    with pytest.raises(ValueError, match="attention_backend='mosaic' cannot run this"):
        Tiny(kv_cache_dtype="int8", attention_backend="mosaic")
    with pytest.raises(ValueError, match="kv_cache_dtype='int4' must be one of auto, float32"):
        Tiny(kv_cache_dtype="int4")


@pytest.mark.parametrize(
    "pool",
    [
        {"num_gpu_blocks_override": 40_000_000},
        {"num_gpu_blocks_override": None, "kv_cache_memory_bytes": 15 << 30},
    ],
    ids=lambda pool: list(pool)[-1],
)
def test_arrays_whose_offsets_need_more_bits_are_refused_before_they_are_made(
    pool: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 bytes a page and array, so more than 2 GiB each."""

    def made(*args: Any) -> None:
        raise AssertionError("the pages would be made now")

    monkeypatch.setattr(assembly, "_memory", made)
    with pytest.raises(ValueError, match="cannot run this: a page array of .* between 2 and 4 GiB"):
        Tiny(kv_cache_dtype="int8", attention_backend="triton", **pool)
