"""FaultAnswer: OpenAI's error for a request whose handler failed or was cancelled."""

from __future__ import annotations

import asyncio
import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paxkv.server.errors import EngineFault, Unavailable

logger = logging.getLogger(__name__)


class FaultAnswer:
    """Answers 500 for an exception that nothing else answers, and 503 for what uvicorn cancels:
    what has not ended some seconds after the grace of a shutdown. An answer that has begun is
    only cut."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        error: EngineFault | Unavailable
        try:
            await self._app(scope, receive, watched)
            return
        except asyncio.CancelledError:
            error = Unavailable("the server was shut down", code="shutting_down", retry_after=5)
        except Exception:
            logger.exception("a request failed")
            error = EngineFault("an internal error; the server's log has more")
        if not begun:
            await error.response()(scope, receive, send)
