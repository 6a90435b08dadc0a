"""Routes under /admin/, behind keys of their own."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter
from starlette.responses import Response

from paxkv.server.answers import json_response
from paxkv.server.middleware.auth import ADMIN_PREFIX
from paxkv.server.service import Service


def routes(service: Service) -> APIRouter:
    router = APIRouter(prefix=ADMIN_PREFIX.rstrip("/"), tags=["admin"])

    @router.get("/stats", response_model=None)
    async def stats() -> Response:
        """Engine statistics."""
        return json_response(asdict(await service.loop.ask(lambda engine: engine.stats())))

    @router.post("/reset_prefix_cache", response_model=None)
    async def reset_prefix_cache() -> Response:
        """Forget all cached blocks."""
        await service.loop.ask(lambda engine: engine.block_manager.reset_prefix_cache())
        return Response(status_code=200)

    return router
