"""GET /v1/models, /version, /health, /ping."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from paxkv.server.answers import json_response
from paxkv.server.errors import Unavailable
from paxkv.server.service import Service


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["status"])

    def card(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": service.created,
            "owned_by": "paxkv",
            "root": service.names[0],
            "parent": None,
            "max_model_len": service.max_model_len,
        }

    @router.get("/v1/models", response_model=None)
    async def models() -> Response:
        """Names of the served model."""
        return json_response({"object": "list", "data": [card(name) for name in service.names]})

    @router.get("/v1/models/{name:path}", response_model=None)
    async def model(name: str) -> Response:
        """One name of the served model."""
        service.check_model(name)
        return json_response(card(name))

    @router.get("/version", response_model=None)
    async def show_version() -> Response:
        return json_response({"version": version("paxkv")})

    @router.get("/health", response_model=None)
    async def health() -> Response:
        """200 while requests can be answered; 503 when the engine is dead, stuck or draining."""
        service.loop.check()
        stalled = service.loop.stalled_for
        if stalled > service.settings.health_stall_seconds:
            raise Unavailable(f"a step has been running for {stalled:.0f} s", code="engine_stuck")
        return Response(status_code=200)

    return router
