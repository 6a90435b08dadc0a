"""RequestLine: a request's method and target in the form that routes match."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

_ORIGIN = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)


class RequestLine:
    """Serves an absolute target, as proxies send it, by its path (RFC 9112, 3.2.2), and HEAD as
    GET (RFC 9110, 9.3.2); uvicorn, which knows the method that was sent, leaves out the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, **_origin_form(scope)}
            if scope["method"] == "HEAD":
                scope["method"] = "GET"
        await self._app(scope, receive, send)


def _origin_form(scope: Scope) -> dict[str, Any]:
    """The paths of an absolute target, without its origin; nothing for any other target."""
    root: str = scope["root_path"]
    target = scope["raw_path"].removeprefix(root.encode())
    origin = _ORIGIN.match(target)
    if origin is None:
        return {}
    path = target[origin.end() :] or b"/"
    return {"raw_path": root.encode() + path, "path": root + unquote(path.decode("ascii"))}
