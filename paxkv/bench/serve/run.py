"""One run: requests sent when they arrive, at most so many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress

from paxkv.bench.serve.client import Client, stopwatch
from paxkv.bench.serve.datasets import Ask
from paxkv.bench.serve.memory import PeakMemory
from paxkv.bench.serve.outcome import Outcome


async def run_load(
    client: Client,
    asks: Sequence[Ask],
    times: Sequence[float],
    *,
    max_concurrency: int | None = None,
    memory: PeakMemory | None = None,
    progress: Callable[[], None] = lambda: None,
) -> tuple[list[Outcome], float]:
    """Outcomes in the order of `asks`, and the seconds from the first request to the last end.

    times: seconds at which each is due. max_concurrency: a request that is due waits for one to
    end; its own time begins when it is sent.
    """
    slots = asyncio.Semaphore(max_concurrency or len(asks))
    clock = stopwatch()

    async def send(ask: Ask) -> Outcome:
        async with slots:
            outcome = await client.send(ask, clock)
        progress()
        return outcome

    async with AsyncExitStack() as stack:
        if memory is not None:
            sampling = asyncio.ensure_future(memory.sample())
            stack.push_async_callback(_cancel, sampling)
        tasks = []
        for ask, time in zip(asks, times, strict=True):
            delay = time - clock()
            if delay > 0:
                await asyncio.sleep(delay)
            tasks.append(asyncio.ensure_future(send(ask)))
        outcomes = await asyncio.gather(*tasks)
    return list(outcomes), clock()


async def _cancel(task: asyncio.Future[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
