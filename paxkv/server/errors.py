"""Errors of requests, as OpenAI's error objects."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from paxkv.engine.input_processor import ContextLengthExceeded

LONGEST_MESSAGE = 500
CONTEXT_CODE = "context_length_exceeded"  # OpenAI's, which clients shorten their prompts at
OUTCOME = "paxkv.outcome"


class ApiError(Exception):
    """An error reported to the client.

    status: of HTTP. kind: the object's "type". param: the field at fault. code: for programs.
    retry_after: seconds after which trying again makes sense.
    """

    status = 400
    kind = "invalid_request_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        if message in ("", "None"):  # of an exception that had none
            message = f"refused without a reason ({self.kind})"
        super().__init__(message[:LONGEST_MESSAGE])
        self.message = message[:LONGEST_MESSAGE]
        self.param = param
        self.code = code
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def name(self) -> str:
        """Name for logs and metrics: one of a few, whatever a client sends."""
        return self.code or self.kind

    def response(self) -> ErrorResponse:
        return ErrorResponse(self)

    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(self.retry_after)} if self.retry_after else {}

    def json(self) -> str:
        """The error object in ASCII, so that it can quote whatever the client sent."""
        return json.dumps(self.body())


class ErrorResponse(Response):
    """An error as the answer to a request."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.json(), error.status, error.headers(), "application/json")
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note_error(scope, self._error)
        await super().__call__(scope, receive, send)


def note_error(scope: Scope, error: ApiError) -> None:
    """Record how this request ends, for logs and metrics."""
    scope.get(OUTCOME, {})["error"] = error


class BadRequest(ApiError):
    pass


class Unauthorized(ApiError):
    status = 401
    kind = "authentication_error"


class Forbidden(ApiError):
    status = 403
    kind = "permission_error"


class NotFound(ApiError):
    status = 404
    kind = "not_found_error"


class DeadlineExceeded(ApiError):
    """A request that exceeded its deadline. A retry would take as long again, and OpenAI's
    clients retry every 408 that does not forbid it."""

    status = 408
    kind = "timeout_error"

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "x-should-retry": "false"}


class BodyOverdue(ApiError):
    """A body that did not arrive in time; the connection is at fault, not the request."""

    status = 408
    kind = "timeout_error"


class TooLarge(ApiError):
    status = 413


class UnsupportedCoding(ApiError):
    """A compressed body; Accept-Encoding says what may be sent (RFC 9110, 15.5.16)."""

    status = 415

    def __init__(self, coding: str) -> None:
        super().__init__(
            f"Content-Encoding {coding[:40]!r} is not supported: send the body uncompressed",
            code="unsupported_content_encoding",
        )

    def headers(self) -> dict[str, str]:
        return {"Accept-Encoding": "identity"}


class HeadersTooLarge(ApiError):
    status = 431

    def __init__(self, most: int) -> None:
        super().__init__(f"the headers are larger than max_header_bytes={most}")


class ClientGone(ApiError):
    """The client has disconnected; the status is only for the log."""

    status = 499
    kind = "client_closed_request"


class EngineFault(ApiError):
    status = 500
    kind = "server_error"


class Overloaded(ApiError):
    status = 503
    kind = "overloaded_error"


class Unavailable(ApiError):
    status = 503
    kind = "unavailable_error"


class HttpError(ApiError):
    """Refusal by the framework: no such route, or no such method (and which there are)."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None) -> None:
        super().__init__(message)
        self.status = status
        self._headers = dict(headers or {})

    def headers(self) -> dict[str, str]:
        return self._headers


def bad_request(
    error: ValueError, fields: Collection[str] = (), param: str | None = None
) -> BadRequest:
    """Make the error for a value, naming the first of `fields` in its message, else `param`."""
    message = str(error)
    words = re.findall(r"\w+", message[:LONGEST_MESSAGE])
    code = CONTEXT_CODE if isinstance(error, ContextLengthExceeded) else None
    named = next((word for word in words if word in fields), param)
    return BadRequest(message, param=named, code=code)
