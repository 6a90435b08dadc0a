"""With one program a request has the same bits whatever runs beside it, however its prompt is cut
into steps, and whether or not it is preempted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paxkv.outputs import RequestOutput
from tests.engine.tiny import CONFIG, Tiny, greedy, ids

# Alone, the third ends in a step of one token of it.
PROMPTS = [ids(length, salt=length) for length in (3, 16, 17, 33, 60, 5, 150, 190)]


def bits(output: RequestOutput) -> Any:
    (completion,) = output.outputs
    assert completion.logprobs is not None
    assert output.prompt_logprobs is not None
    every = [*output.prompt_logprobs[1:], *completion.logprobs]
    found = [sorted((token, x.logprob) for token, x in at.items()) for at in every if at]
    assert len(found) == len(output.prompt_token_ids) - 1 + len(completion.token_ids)
    return completion.token_ids, found


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("blocks", [250, 80])
def test_a_request_has_the_same_bits_alone_and_among_others(
    window: int | None, blocks: int
) -> None:
    tiny = Tiny(
        replace(CONFIG, sliding_window=window),
        deterministic=True,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_num_batched_tokens=16,
        max_num_seqs=8,
        max_model_len=256,
        block_size=4,
        num_gpu_blocks_override=blocks,
    )
    wanted = greedy(60, logprobs=2, prompt_logprobs=1)
    alone = [bits(tiny.generate([prompt], wanted)[0]) for prompt in PROMPTS]
    assert [bits(output) for output in tiny.generate(PROMPTS, wanted)] == alone
    assert bool(tiny.engine.stats().preemptions) == (blocks == 80)


def test_a_request_has_the_same_bits_from_cached_blocks() -> None:
    """Blocks that other steps have computed, beside other sequences."""
    tiny = Tiny(
        deterministic=True,
        max_num_batched_tokens=16,
        max_model_len=256,
        num_gpu_blocks_override=250,
    )
    wanted = greedy(20, logprobs=2)
    prompts = [PROMPTS[-1][:cut] + prompt for cut, prompt in zip((0, 30, 61, 100), PROMPTS)]

    def answers() -> Any:
        outputs = tiny.generate(prompts, wanted)
        cached = sum(output.num_cached_tokens for output in outputs)
        return cached, [(o.outputs[0].token_ids, o.outputs[0].logprobs) for o in outputs]

    (before, first), (after, second) = answers(), answers()
    assert after > before
    assert first == second
