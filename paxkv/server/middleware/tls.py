"""TLS: certificate and key, and connections that are bounded from their first byte on."""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from pathlib import Path
from typing import Any

from uvicorn import Config
from uvicorn.server import ServerState

from paxkv.server.middleware.http_protocol import PatientProtocol
from paxkv.server.settings import ServerSettings


def tls_context(settings: ServerSettings) -> ssl.SSLContext | None:
    """TLS context from the settings' files; None without any. Raises ValueError for bad files."""
    if settings.ssl_certfile is None or settings.ssl_keyfile is None:
        return None
    for name in ("ssl_certfile", "ssl_keyfile"):
        file = getattr(settings, name)
        try:
            Path(file).read_bytes()
        except OSError as error:
            raise ValueError(f"{name}={file!r} cannot be read: {error.strerror}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password, even an empty one, OpenSSL would ask for it on the terminal.
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, password="")
    except ssl.SSLError as error:
        raise ValueError(
            f"ssl_certfile={settings.ssl_certfile!r} and ssl_keyfile={settings.ssl_keyfile!r} must "
            f"be a certificate chain and its private key, in PEM and not encrypted: {error}"
        ) from None
    return context


class TlsProtocol(SSLProtocol):
    """PatientProtocol within TLS.

    A connection counts from its beginning, and its handshake has max_header_seconds; so has the
    other side's part of its end. With the `ssl` of asyncio's servers a protocol would hear of it
    when the handshake is done.
    """

    http: type[PatientProtocol]
    context: ssl.SSLContext

    @classmethod
    def around(cls, http: type[PatientProtocol], context: ssl.SSLContext) -> type[TlsProtocol]:
        return type("ServedTlsProtocol", (cls,), {"http": http, "context": context})

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: None
    ) -> None:
        self._inner = self.http(config, server_state, app_state)
        seconds: Any = self.http.limits.max_header_seconds
        super().__init__(
            asyncio.get_running_loop(),
            self._inner,
            self.context,
            None,  # type: ignore[arg-type]  # nobody waits for the handshake
            server_side=True,
            ssl_handshake_timeout=seconds,
            ssl_shutdown_timeout=seconds,
        )

    def connection_made(self, transport: Any) -> None:
        inner = self._inner
        if len(inner.connections) >= inner.limits.max_connections:
            transport.abort()
            return
        inner.transport = transport  # to be closed by, until it hears of its own
        inner.connections.add(inner)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._inner.connections.discard(self._inner)
        super().connection_lost(exc)
