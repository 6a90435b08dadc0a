"""HeaderLimit: a request's line and headers, of bounded size."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from paxkv.server.errors import HeadersTooLarge


class HeaderLimit:
    """Refuses what is larger than `max_bytes`. The parser's own limit is on incomplete headers
    alone, and those that come in one piece never are."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _size(scope) > self._max_bytes:
            await HeadersTooLarge(self._max_bytes).response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _size(scope: Scope) -> int:
    headers = sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"])
    return len(scope["path"]) + len(scope["query_string"]) + headers
