"""Calling the application without a socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.types import ASGIApp, Message


async def post(app: ASGIApp, path: str, body: Any) -> tuple[int, Any]:
    """Status and JSON of the answer to a POST."""
    content = json.dumps(body).encode()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": None,
        "server": None,
    }
    status = 0
    answer = bytearray()
    unread = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> Message:
        if unread:
            return unread.pop()
        return await asyncio.get_running_loop().create_future()  # nobody goes away

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            answer.extend(message.get("body", b""))

    await app(scope, receive, send)
    return status, json.loads(answer) if answer else None
