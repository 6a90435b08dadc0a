"""A pool in every state at once, without a step: pages of requests that never run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from paxkv.memory import BlockManager
from paxkv.sampling.sampling_params import SamplingParams

BLOCK_SIZE = 4


@contextmanager
def full_pool(model: Any, num_blocks: int, num_requests: int) -> Iterator[BlockManager]:
    """An idle model's engine with a pool of this size, half of it in use.

    Every third request begins with the pages of the one before it; every fourth has ended, its
    pages are cached. The pool it had comes back at the end.
    """
    engine = model.engine
    own = engine.block_manager
    each = num_blocks * 3 // (4 * num_requests)
    memory = BlockManager(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_rows=num_requests,
        max_blocks_per_row=2 * each,
    )
    engine.block_manager = memory
    tokens: list[int] = []
    for number in range(num_requests):
        common = tokens[: len(tokens) // 2] if number % 3 == 2 else []
        own_tokens = [
            (number * 7919 + i * (1 + number % 5)) % 300 for i in range(each * BLOCK_SIZE)
        ]
        tokens = [*common, *own_tokens][: each * BLOCK_SIZE - number % BLOCK_SIZE]
        _hold(model, number, tokens)
    for sequence in engine.scheduler.running[1::4]:
        memory.free(sequence.row)
        sequence.row = None
    engine.scheduler.running[:] = [s for s in engine.scheduler.running if s.row is not None]
    memory.check_invariants()
    try:
        yield memory
    finally:
        engine.scheduler.running.clear()
        engine.block_manager = own


def _hold(model: Any, number: int, tokens: list[int]) -> None:
    """A running request with pages for `tokens`, all of them cached."""
    memory = model.engine.block_manager
    request = model.input_processor.request([5], SamplingParams(max_tokens=4))
    request.arrival = number
    (sequence,) = request.sequences
    sequence.chain = memory.chain()
    allocation = memory.allocate(tokens, chain=sequence.chain)
    assert allocation is not None
    memory.cache_blocks(allocation.row, tokens, len(tokens))
    sequence.row = allocation.row
    model.engine.scheduler.running.append(sequence)
