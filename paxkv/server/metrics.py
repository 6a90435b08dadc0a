"""GET /metrics, for Prometheus."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from fastapi import APIRouter
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from starlette.responses import Response

from paxkv.server.engine_metrics import EngineMetrics
from paxkv.server.errors import Unavailable
from paxkv.server.figures import Figures
from paxkv.server.request_metrics import RequestMetrics
from paxkv.server.service import Service

PATIENCE = 1.0


def routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["status"])
    disable_created_metrics()
    registry = CollectorRegistry()
    name = service.names[0]
    engine = EngineMetrics(name)
    registry.register(engine)
    requests = RequestMetrics(registry, name, service.max_model_len)
    service.loop.observers.append(requests)
    service.refused.append(requests.refused)
    ProcessCollector(registry=registry)

    @router.get("/metrics", response_model=None)
    async def metrics() -> Response:
        """Counters, gauges and histograms under vLLM's names."""
        # Of a dead or stuck engine the last figures are shown.
        with suppress(TimeoutError, Unavailable):
            async with asyncio.timeout(PATIENCE):
                engine.figures = await service.loop.ask(Figures.of)
        engine.time_per_token_ms = 1000 * requests.time_per_token.mean(time.monotonic())
        content = await service.work(lambda: generate_latest(registry))
        return Response(content, headers={"Content-Type": CONTENT_TYPE_LATEST})

    return router
