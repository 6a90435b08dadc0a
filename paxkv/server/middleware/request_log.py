"""RequestLog: one line for each HTTP request, never with a prompt or a key in it."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import datetime

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paxkv.server.errors import OUTCOME, ApiError, ClientGone

logger = logging.getLogger("paxkv.requests")

QUIET_PATHS = frozenset({"/health", "/metrics", "/page/state"})
LONGEST_PATH = 100
_GOOD_ID = re.compile(rb"[\w.\-]{1,64}")


class RequestLog:
    """Logs and numbers requests: X-Request-Id is the client's, or a new one.

    refused: called with each error that was a request's answer.
    """

    def __init__(self, app: ASGIApp, refused: Iterable[Callable[[ApiError], None]] = ()) -> None:
        self._app = app
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        request_id = given if _GOOD_ID.fullmatch(given) else uuid.uuid4().hex.encode()
        start = time.monotonic()
        status = 0
        outcome: dict[str, ApiError] = {}
        scope = {**scope, OUTCOME: outcome}

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {
                    **message,
                    "headers": [*message["headers"], (b"x-request-id", request_id)],
                }
            await send(message)

        try:
            await self._app(scope, receive, tell)
        finally:
            level = logging.DEBUG if scope["path"] in QUIET_PATHS else logging.INFO
            fields = {
                "request_id": request_id.decode(),
                "method": scope["method"],
                "path": scope["path"][:LONGEST_PATH],
                "status": status,
                "seconds": round(time.monotonic() - start, 4),
            }
            error = outcome.get("error")
            if error is not None:
                fields["code"] = error.name
                if status == error.status and not isinstance(error, ClientGone):
                    for observer in self._refused:
                        observer(error)
            logger.log(level, "request", extra={"fields": fields})


class LogFormatter(logging.Formatter):
    """Lines of text, or JSON objects; `fields` of a record are part of either."""

    def __init__(self, as_json: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._as_json = as_json

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """ISO 8601 with the zone: lines of several machines can be put in order."""
        return datetime.fromtimestamp(record.created).astimezone().isoformat(" ", "milliseconds")

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        if not self._as_json:
            text = super().format(record)
            return text + "".join(f" {name}={value!r}" for name, value in fields.items())
        entry = {
            "time": self.formatTime(record).replace(" ", "T"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **fields,
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def configure_logging(as_json: bool, level: str) -> None:
    """Everything to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter(as_json))
    logging.basicConfig(handlers=[handler], level=level.upper())
    if level != "debug":  # JAX names every kind of device that this machine does not have
        logging.getLogger("jax").setLevel(max(logging.WARNING, logging.root.level))
