"""API keys: which callers may use which routes."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from paxkv.server.dashboard import files
from paxkv.server.errors import ApiError, Forbidden, Unauthorized
from paxkv.text.text_file import read_text

OPEN_PATHS = frozenset({"/health", "/metrics", "/version"}) | files.PATHS
ADMIN_PREFIX = "/admin/"


def gather_keys(given: Sequence[str] | None, file: str | None, name: str) -> tuple[str, ...]:
    """Keys from options and from a file with one a line. Raises ValueError without showing any."""
    keys = list(given or ())
    if file is not None:
        try:
            text = read_text(Path(file))
        except (OSError, ValueError) as error:
            raise ValueError(f"{name}_file={file!r} cannot be read: {error}") from None
        keys += [line.strip() for line in text.splitlines() if line.strip()]
        if not keys:
            raise ValueError(f"{name}_file={file!r} has no key in it")
    if not all(key.isascii() and key.isprintable() and key and " " not in key for key in keys):
        raise ValueError(f"{name} must be printable ASCII characters without spaces")
    return tuple(keys)


def caller(authorization: bytes) -> bytes:
    """Identity of the caller: digest of the Authorization header's token, or of nothing."""
    _, _, token = authorization.strip().partition(b" ")
    return sha256(token.strip()).digest()


class Keys:
    """A set of keys; an empty one admits every caller."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def opens(self, authorization: bytes) -> bool:
        """Whether the header's bearer token is one of them, compared in constant time."""
        scheme = authorization.strip().partition(b" ")[0]
        digest = caller(authorization)
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(known, digest)
        return found and scheme.lower() == b"bearer"


class KeyGuard:
    """Admits requests with the right key; every route outside OPEN_PATHS is closed.

    Routes under ADMIN_PREFIX have keys of their own, without which they are closed to all.
    """

    def __init__(self, app: ASGIApp, keys: Keys, admin_keys: Keys) -> None:
        self._app = app
        self._keys = keys
        self._admin_keys = admin_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await refusal.response()(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        path: str = scope["path"]
        if path in OPEN_PATHS:
            return None
        keys = self._keys
        if path.startswith(ADMIN_PREFIX):
            if not self._admin_keys:
                return Forbidden("this server was started without an admin_key", code="no_admin")
            keys = self._admin_keys
        if not keys:
            return None
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) == 1 and keys.opens(given[0]):
            return None
        return Unauthorized(
            "a valid key is needed, as the header 'Authorization: Bearer KEY'",
            code="invalid_api_key",
        )
