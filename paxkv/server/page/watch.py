"""Watch: the latest look at the engine, taken only on request."""

from __future__ import annotations

import asyncio
import time

from paxkv.server.engine_loop import EngineLoop
from paxkv.server.errors import Unavailable
from paxkv.server.page.look import Look

FRESH_SECONDS = 0.2
PATIENCE = 1.0


class Watch:
    """Looks at the engine at most five times a second, however many watch."""

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop
        self._lock = asyncio.Lock()
        self._look: Look | None = None

    async def look(self) -> Look:
        """The last look, or a new one; an old one while a step takes long.

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
