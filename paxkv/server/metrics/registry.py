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

from paxkv.server.errors import Unavailable
from paxkv.server.metrics.engine import EngineMetrics
from paxkv.server.metrics.engine_snapshot import EngineSnapshot
from paxkv.server.metrics.requests import RequestMetrics
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
        # A dead or stuck engine shows its last statistics.
        with suppress(TimeoutError, Unavailable):
            async with asyncio.timeout(PATIENCE):
                engine.snapshot = await service.loop.ask(EngineSnapshot.of)
        engine.time_per_token_ms = 1000 * requests.time_per_token.mean(time.monotonic())
        content = await service.work(lambda: generate_latest(registry))
        return Response(content, headers={"Content-Type": CONTENT_TYPE_LATEST})

    return router
