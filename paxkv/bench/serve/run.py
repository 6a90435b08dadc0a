"""One run: requests sent when they arrive, at most so many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from paxkv.bench.serve.client import Client, stopwatch
from paxkv.bench.serve.datasets import Ask
from paxkv.bench.serve.outcome import Outcome

MEMORY_SECONDS = 0.1


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


class PeakMemory:
    """The most resident memory a process had while this was sampling; Linux only.

    bytes: so far, 0 before the first sample. Raises ValueError if there is no such process.
    """

    def __init__(self, pid: int) -> None:
        self._file = Path(f"/proc/{pid}/status")
        self.bytes = 0
        if not self._file.is_file():
            raise ValueError(f"server_pid is {pid}; no such process can be seen here")

    async def sample(self) -> None:
        """Until cancelled, or until the process ends."""
        with suppress(OSError):
            while True:
                self.look()
                await asyncio.sleep(MEMORY_SECONDS)

    def look(self) -> None:
        for line in self._file.read_text().splitlines():
            if line.startswith("VmRSS:"):
                self.bytes = max(self.bytes, 1024 * int(line.split()[1]))
