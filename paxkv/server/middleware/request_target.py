"""RequestLine and RootPath: a request's method and path in the form that routes match."""

from __future__ import annotations

import re
from collections.abc import Iterable
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


class RootPath:
    """Removes the prefix from a request's path where the proxy has left it on.

    The outermost middleware: keys, logs and routes all see the server's own paths, with and
    without a proxy in front.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _is_below(scope["path"], self._root):
            scope = {**scope, "path": scope["path"][len(self._root) :] or "/"}
        await self._app(scope, receive, send)


def check_free(root_path: str, paths: Iterable[str]) -> None:
    """Raise ValueError if a route is below the prefix: its path could be read in two ways."""
    for path in paths:
        if _is_below(path, root_path):
            raise ValueError(
                f"root_path={root_path!r} must not be the beginning of a route, as it is of "
                f"{path}; choose another prefix, such as /llm{root_path}"
            )


def _is_below(path: str, root: str) -> bool:
    return root != "" and (path == root or path.startswith(f"{root}/"))
