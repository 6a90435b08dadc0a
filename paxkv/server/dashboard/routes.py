"""GET / and its files, and /page/state, which it draws."""

from __future__ import annotations

import gzip
import time
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from paxkv.server.answers import to_json
from paxkv.server.dashboard import document
from paxkv.server.dashboard.files import HEADERS, PageFile, page_files
from paxkv.server.dashboard.look import Look, Watch
from paxkv.server.dashboard.traffic import Traffic
from paxkv.server.service import Service

FAST = 1


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["page"])
    for file in page_files(service.settings.root_path):
        _add_file(router, file)
    traffic = Traffic()
    service.loop.observers.append(traffic)
    watch = Watch(service.loop)
    started = round(time.time(), 3)

    def state_of(look: Look, seen: dict[str, Any], number: int | None) -> dict[str, Any]:
        return {
            "model": service.names[0],
            "version": version("paxkv"),
            "started": started,
            "time": look.time,
            "age": round(time.monotonic() - look.time, 2),
            "draining": service.loop.draining,
            "pool": document.pool_document(look),
            "queue": document.queue_document(look),
            "requests": document.request_documents(look),
            "traffic": seen,
            "table": None if number is None else document.table_document(look, number),
        }

    @router.get("/page/state", response_model=None)
    async def state(
        request: Annotated[int | None, Query(ge=0, description="whose block table")] = None,
        accept_encoding: Annotated[str, Header()] = "",
    ) -> Response:
        """Pages and counts of all callers, without tokens, texts or names."""
        look = await watch.look()
        seen = document.traffic_document(traffic)
        content = await service.work(lambda: to_json(state_of(look, seen, request)))
        headers = {"Cache-Control": "no-store"}
        if "gzip" in accept_encoding:
            content = await service.work(lambda: gzip.compress(content, FAST))
            headers["Content-Encoding"] = "gzip"
        return Response(content, headers=headers, media_type="application/json")

    return router


def _add_file(router: APIRouter, file: PageFile) -> None:
    async def send() -> Response:
        return Response(file.content, headers=HEADERS, media_type=file.media_type)

    name = "page" if file.path == "/" else f"page_{file.path.rpartition('/')[2]}"
    router.add_api_route(
        file.path, send, methods=["GET"], response_model=None, name=name, summary="The page."
    )
