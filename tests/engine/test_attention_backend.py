"""The engine on the GPU kernels, in interpret mode: the same tokens as on the XLA path."""

from __future__ import annotations

from typing import Any

import pytest

from paxkv import LLM
from paxkv.engine.config import EngineConfig
from paxkv.sampling.sampling_params import SamplingParams
from tests.engine.tiny import Tiny, greedy, ids

# Few pages and small steps: requests are preempted, prompts come in chunks.
TIGHT: dict[str, Any] = {
    "num_gpu_blocks_override": 13,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 16,
    "max_model_len": 64,
    "deterministic": True,
}


def answers(backend: str) -> tuple[list[list[list[int]]], Any]:
    """Token ids of every sequence of every request, and the engine's figures."""
    tiny = Tiny(attention_backend=backend, **TIGHT)
    common = ids(9)
    prompts = [common + ids(length, salt=length) for length in (1, 4, 7, 11)]
    prompts += [ids(13, salt=1), ids(3, salt=2)]
    fork = SamplingParams(n=2, temperature=0.8, seed=5, max_tokens=6, ignore_eos=True)
    each: list[SamplingParams] = [greedy(10)] * 5 + [fork]
    first = tiny.generate(prompts, each)
    again = tiny.generate(prompts[:2], greedy(3))
    found = [[list(o.token_ids) for o in output.outputs] for output in first + again]
    return found, tiny.engine.stats()


def test_triton_gives_the_tokens_of_the_xla_path() -> None:
    want, _ = answers("xla")
    got, stats = answers("triton")
    assert got == want
    assert stats.attention.startswith("triton (asked for by name")
    assert stats.preemptions > 0
    assert stats.cow_copies > 0
    assert stats.prefix_cache_hits > 0


def test_what_was_chosen_and_why_is_told() -> None:
    stats = Tiny().engine.stats()
    assert stats.attention == (
        "xla (the first that covers the call; "
        "triton: its kernels are for NVIDIA GPUs, not for cpu; "
        "mosaic: its kernels are for NVIDIA GPUs, not for cpu)"
    )


def test_an_unknown_back_end_is_refused() -> None:
    with pytest.raises(ValueError, match="attention_backend='cuda' must be one of auto, xla, tri"):
        EngineConfig(attention_backend="cuda")  # type: ignore[arg-type]


@pytest.mark.full
def test_the_real_model_on_triton_with_preemption_forks_and_prefix_hits() -> None:
    """8 requests of 16 tokens on SmolLM2, interpreted: the tokens of the XLA path."""

    def run(backend: str) -> tuple[list[list[list[int]]], Any]:
        llm = LLM(
            "smollm2-135m",
            dtype="float32",
            attention_backend=backend,
            deterministic=True,
            max_num_seqs=4,
            max_num_batched_tokens=16,
            max_model_len=64,
            num_gpu_blocks_override=9,
            block_size=8,
        )
        start = llm.get_tokenizer().encode("The three largest cities of the world are")
        ends = [llm.get_tokenizer().encode(f" number {index}:") for index in range(7)]
        prompts = [{"prompt_token_ids": start + end} for end in ends]
        plain = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
        fork = SamplingParams(n=2, temperature=0.8, seed=5, max_tokens=16, ignore_eos=True)
        outputs = llm.generate([*prompts, prompts[0]], [plain] * 7 + [fork], use_tqdm=False)
        return [[o.token_ids for o in output.outputs] for output in outputs], llm.stats()

    want, _ = run("xla")
    got, stats = run("triton")
    assert got == want
    assert stats.attention.startswith("triton (asked for by name")
    assert min(stats.preemptions, stats.cow_copies, stats.prefix_cache_hits) > 0
