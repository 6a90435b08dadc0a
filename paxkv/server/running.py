"""serve: the application behind uvicorn, from start to a clean end."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import resource
import signal
import socket
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from paxkv.server.middleware.http_protocol import PatientProtocol
from paxkv.server.middleware.tls import TlsProtocol, tls_context
from paxkv.server.service import Service

logger = logging.getLogger(__name__)

EXIT_ENGINE_DEAD = 1
KEEP_ALIVE_SECONDS = 75
OTHER_FILES = 256
BACKLOG = 2048
ACCEPT_LOG_SECONDS = 1.0
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
SECONDS_TO_TELL = 1.0  # that a dead engine's server stays, to answer what it has


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, so that a port in use is known before a model is loaded; connections
    wait in its backlog until they are served.

    Raises ValueError if it cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        found.listen(BACKLOG)  # of several that are bound to a port, one alone can
    except OSError as error:
        found.close()
        raise ValueError(f"cannot listen on host={host}, port={port}: {error.strerror}") from None
    return found


def allow_files(connections: int) -> None:
    """Raise the process's limit of open files to what so many connections need, if it may be."""
    wanted = connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        logger.warning("max_connections=%d, but %d files may be open at most", connections, hard)
        wanted = hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def calm_collector() -> None:
    """What was loaded so far is not garbage: without going through all of it again and again,
    parsing a body of a million lists takes a quarter of a second and not three, and no step waits
    for a collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, *gc.get_threshold()[1:])


class GracefulServer(uvicorn.Server):
    """On a first SIGTERM or Ctrl-C running requests end and new ones are refused; a second one
    ends the process at once."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._ending: asyncio.Task[None] | None = None
        self.exit_code = 0

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(AcceptLog())
        self._service.loop.on_fault = self._engine_died
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._ending is not None:
            logger.warning("a second signal: ending now")
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        self._loop.call_soon_threadsafe(self._begin_end)

    def _begin_end(self) -> None:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        logger.info("shutting down: new requests are refused, running ones may end")
        await self._service.drain()
        self.should_exit = True

    def _engine_died(self) -> None:
        self.exit_code = EXIT_ENGINE_DEAD
        self._loop.call_later(SECONDS_TO_TELL, setattr, self, "should_exit", True)


def configuration(service: Service, app: FastAPI) -> uvicorn.Config:
    logging.getLogger("uvicorn.access").disabled = True  # RequestLog says more, and no queries
    http = PatientProtocol.limited(service.limits, service.refused)
    context = tls_context(service.settings)
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=service.limits.max_header_bytes,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=5,
        ws="none",
        http=http if context is None else TlsProtocol.around(http, context),  # type: ignore[arg-type]
        loop="asyncio",
        backlog=BACKLOG,
    )


def serve(app: FastAPI, sockets: list[socket.socket]) -> int:
    """Answer on `sockets` until a signal; the exit code: 0, or 1 if the engine died."""
    service: Service = app.state.service
    allow_files(service.limits.max_connections)
    calm_collector()
    server = GracefulServer(configuration(service, app), service)
    for each in sockets:
        host, port = each.getsockname()[:2]
        scheme = "https" if service.settings.ssl_certfile else "http"
        logger.info("listening on %s://%s:%d", scheme, f"[{host}]" if ":" in host else host, port)
    server.run(sockets)
    return server.exit_code


class AcceptLog:
    """An event loop's exception handler: at most one line in ACCEPT_LOG_SECONDS says that
    connections wait. asyncio would write a traceback for each of thousands of tries."""

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
            self._next = loop.time() + ACCEPT_LOG_SECONDS
            logger.warning("connections wait to be accepted: %s", error)
