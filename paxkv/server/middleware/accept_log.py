"""AcceptLog: rate-limited log of connections that cannot be accepted."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Any

logger = logging.getLogger(__name__)

SECONDS = 1.0
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class AcceptLog:
    """An event loop's exception handler: a line in SECONDS says that connections wait. asyncio
    would write a traceback for each of thousands of tries."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        message = context["message"]
        if "_start_serving" in message:  # a later try, when the socket has been closed
            logger.debug("not accepting any more: %s", error)
        elif "accept" not in message or getattr(error, "errno", None) not in EXHAUSTED:
            loop.default_exception_handler(context)
        elif loop.time() >= self._next:
            self._next = loop.time() + SECONDS
            logger.warning("connections wait to be accepted: %s", error)
