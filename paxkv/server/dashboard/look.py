"""Look: the pool and the queue at one moment, as numbers; no token and no prompt is in it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from paxkv.engine.engine import Engine
from paxkv.engine.request import Request
from paxkv.server.engine_loop import EngineLoop
from paxkv.server.errors import Unavailable
from paxkv.server.metrics.engine_snapshot import State, request_states

FRESH_SECONDS = 0.2
PATIENCE = 1.0
MOST_WAITING = 100


@dataclass(frozen=True)
class Holding:
    """The block table of one sequence.

    index: among its request's. num_tokens: slots granted. pages: `[blocks]` int32, in order.
    """

    index: int
    num_tokens: int
    pages: NDArray[np.int32]


@dataclass(frozen=True)
class RequestLook:
    """A request by the number of its arrival.

    state: running, waiting or swapped. prompt, output, cached: tokens. age: seconds.
    """

    number: int
    state: State
    prompt: int
    output: int
    cached: int
    preemptions: int
    age: float
    holdings: tuple[Holding, ...]


@dataclass(frozen=True)
class Look:
    """A snapshot made by `of`.

    time: seconds of `time.monotonic`. references: `[num_blocks + 1]` int32, of each page; page 0
    is nobody's. cached: `[num_blocks + 1]` bool, pages the prefix cache knows. requests: all that
    run, then the first of those that wait. waiting, swapped: how many there are in all.
    """

    time: float
    block_size: int
    references: NDArray[np.int32]
    cached: NDArray[np.bool_]
    requests: tuple[RequestLook, ...]
    running: int
    waiting: int
    swapped: int
    preemptions: int
    prefix_queries: int
    prefix_hits: int

    @property
    def num_blocks(self) -> int:
        return len(self.references) - 1

    @classmethod
    def of(cls, engine: Engine) -> Look:
        """Copy the state, nothing more: the next step waits. Call it between two steps."""
        now = time.monotonic()
        memory, scheduler = engine.block_manager, engine.scheduler
        states = request_states(scheduler)
        numbers = Counter(states.values())

        def look(request: Request, state: State) -> RequestLook:
            holdings = tuple(
                Holding(s.index, int(memory.num_tokens[s.row]), memory.row_pages(s.row))
                for s in request.sequences
                if s.row is not None
            )
            output = sum(len(s.token_ids) for s in request.sequences)
            output -= request.num_prompt * len(request.sequences)
            return RequestLook(
                request.arrival,
                state,
                request.num_prompt,
                output,
                request.num_cached_tokens,
                request.num_preemptions,
                now - request.arrival_time,
                holdings,
            )

        stats = memory.stats()
        return cls(
            time=now,
            block_size=memory.block_size,
            references=memory.references.copy(),
            cached=memory.cached.copy(),
            requests=tuple(
                look(request, state)
                for request, state in islice(states.items(), numbers["running"] + MOST_WAITING)
            ),
            running=numbers["running"],
            waiting=numbers["waiting"],
            swapped=numbers["swapped"],
            preemptions=scheduler.num_preemptions,
            prefix_queries=stats.prefix_queries,
            prefix_hits=stats.prefix_hits,
        )


class Watch:
    """Takes at most five looks a second, for any number of viewers."""

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop
        self._lock = asyncio.Lock()
        self._look: Look | None = None

    async def look(self) -> Look:
        """Return the last look or a new one; an old one while a step takes long.

        Raises Unavailable if the engine is dead, or has not answered yet.
        """
        async with self._lock:
            if self._look is None or time.monotonic() - self._look.time > FRESH_SECONDS:
                try:
                    async with asyncio.timeout(PATIENCE):
                        self._look = await self._loop.ask(Look.of)
                except TimeoutError:
                    if self._look is None:
                        raise Unavailable(
                            "the engine is busy with its first step", code="engine_busy"
                        ) from None
            return self._look
