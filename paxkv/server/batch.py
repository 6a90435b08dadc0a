"""run_batch: a file of requests through the server's routes, without a server."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Message
from tqdm.auto import tqdm

from paxkv.server.app import build_app
from paxkv.server.batch_file import (
    BatchLine,
    BatchResults,
    StreamedResults,
    check_files,
    count_lines,
    open_results,
    read_batch,
)
from paxkv.server.limits import RequestLimits
from paxkv.server.service import Model
from paxkv.server.settings import ServerSettings

LINES_PER_ROW = 2
UNLIMITED = 10**9


@dataclass
class BatchSummary:
    """Numbers of lines that were answered, failed, or were done by an earlier run."""

    answered: int = 0
    failed: int = 0
    resumed: int = 0


def run_batch(
    model: Model,
    source: Path,
    target: Path,
    *,
    name: str,
    resume: bool = False,
    chat_template: str | None = None,
    progress: bool = True,
) -> BatchSummary:
    """Answer every line of `source`; a line that fails has an error in its place.

    name: what the model is called in the lines. Raises ValueError if a file cannot be used, and
    OutputError if a result cannot be written.
    """
    output = check_files(source, target, resume=resume)
    settings = ServerSettings(
        max_num_queued_reqs=UNLIMITED,
        max_num_queued_tokens=UNLIMITED,
        max_queue_wait=UNLIMITED,
        chat_template=chat_template,
    )
    limits = RequestLimits(
        max_request_seconds=UNLIMITED,
        max_body_bytes=UNLIMITED,
        max_body_values=UNLIMITED,
        max_held_bytes=UNLIMITED,
        max_waiting_grammars=UNLIMITED,
    )
    app = build_app(model, settings, limits, name=name)
    results = open_results(output)
    try:
        summary = asyncio.run(_run(app, model, source, results, progress))
    except BaseExceptionGroup as group:
        results.abandon()
        raise _first(group) from None
    except BaseException:
        results.abandon()
        raise
    results.close()
    return summary


def _first(group: BaseExceptionGroup) -> BaseException:
    """The error that ended the others."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


async def _run(
    app: FastAPI,
    model: Model,
    source: Path,
    results: BatchResults | StreamedResults,
    progress: bool,
) -> BatchSummary:
    room = asyncio.Semaphore(LINES_PER_ROW * model.engine.config.max_num_seqs)
    summary = BatchSummary()
    with tqdm(total=count_lines(source), desc="Batch", unit=" lines", disable=not progress) as bar:

        async def answer(line: BatchLine) -> None:
            try:
                status, body = await _post(app, line.url, line.body)
            finally:
                room.release()
            results.add(line, line.result(status, body), final=status < 500)
            summary.answered += status == 200
            summary.failed += status != 200
            bar.update()

        async with app.router.lifespan_context(app), asyncio.TaskGroup() as group:
            for line in read_batch(source):
                results.expect(line)
                if results.has(line):
                    summary.resumed += 1
                    summary.failed += results.has_failed(line)
                    bar.update()
                elif line.error is not None:
                    results.add(line, line.refusal())
                    summary.failed += 1
                    bar.update()
                else:
                    await room.acquire()
                    group.create_task(answer(line))
    return summary


async def _post(app: ASGIApp, path: str, body: Any) -> tuple[int, Any]:
    """Status and JSON of the answer to a POST, without a socket."""
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
