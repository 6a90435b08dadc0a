"""RootPath: the path prefix under which a reverse proxy serves this server."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send


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
