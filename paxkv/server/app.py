"""build_app: the ASGI application, from a model and settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from paxkv.server.dashboard import routes as dashboard
from paxkv.server.engine_loop import EngineLoop
from paxkv.server.errors import ApiError, BadRequest, HttpError
from paxkv.server.limits import RequestLimits
from paxkv.server.metrics import registry as metrics
from paxkv.server.metrics.spans import RequestSpans, TraceHeaders, otlp_exporter
from paxkv.server.middleware.auth import KeyGuard
from paxkv.server.middleware.backlog import Backlog
from paxkv.server.middleware.fault_answer import FaultAnswer
from paxkv.server.middleware.request_log import RequestLog
from paxkv.server.middleware.request_target import RequestLine, RootPath, check_free
from paxkv.server.middleware.size_limits import BodyLimit, HeaderLimit
from paxkv.server.routes import (
    admin,
    chat,
    completions,
    embeddings,
    plain_generation,
    responses,
    status,
    tokenization,
)
from paxkv.server.service import Model, Service
from paxkv.server.settings import ServerSettings

ROUTERS = (
    completions,
    embeddings,
    chat,
    responses,
    plain_generation,
    tokenization,
    status,
    metrics,
    dashboard,
    admin,
)

DESCRIPTION = """OpenAI's API, with vLLM's additions: every field of SamplingParams may be given.

`priority`: a larger number runs first (vLLM's own order is the opposite). Unknown fields
are ignored; unsupported fields that would change the answer are refused."""


def build_app(
    model: Model,
    settings: ServerSettings | None = None,
    limits: RequestLimits | None = None,
    *,
    name: str = "model",
) -> FastAPI:
    """The application; `app.state.service` is what its routes share.

    name: of the model, if the settings have none. The engine's thread starts with the
    application and ends with it.
    """
    settings = settings or ServerSettings()
    limits = limits or RequestLimits()
    loop = EngineLoop(
        model.engine,
        backlog=Backlog(
            settings.max_num_queued_reqs,
            settings.max_num_queued_tokens,
            model.engine.config.max_num_seqs,
        ),
        max_queue_wait=settings.max_queue_wait,
    )
    names = tuple(settings.served_model_name or (name,))
    service = Service(model, loop, settings, limits, names)
    spans = None
    if settings.otlp_traces_endpoint is not None:
        spans = RequestSpans(otlp_exporter(settings.otlp_traces_endpoint), names[0])
        loop.observers.append(spans)
    if settings.chat_template is not None:
        # The model's own stays: it may serve others, or LLM.chat.
        service.tokenizer = service.need_tokenizer().with_chat_template(settings.chat_template)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loop.start()
        yield
        await loop.stop()
        service.close()
        if spans is not None:
            await asyncio.to_thread(spans.close)

    app = FastAPI(
        title="paxkv",
        version=version("paxkv"),
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        servers=[{"url": settings.root_path}] if settings.root_path else None,
    )
    app.state.service = service
    for module in ROUTERS:
        router = module.routes(service)
        check_free(settings.root_path, (getattr(route, "path", "") for route in router.routes))
        app.include_router(router)
    _guard(app, service)
    app.add_exception_handler(ApiError, _tell)
    app.add_exception_handler(RequestValidationError, _tell_invalid)
    app.add_exception_handler(HTTPException, _tell_http)
    app.add_exception_handler(RecursionError, _tell_nested)
    return app


def _guard(app: FastAPI, service: Service) -> None:
    """Add the middleware before the routes; the last one added runs first."""
    settings, limits = service.settings, service.limits
    keys, admin_keys = settings.keys()
    app.add_middleware(
        BodyLimit,
        max_bytes=limits.max_body_bytes,
        max_values=limits.max_body_values,
        max_seconds=limits.max_body_seconds,
        max_held=limits.max_held_bytes,
    )
    app.add_middleware(KeyGuard, keys=keys, admin_keys=admin_keys)
    if settings.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.allowed_origins),
            allow_methods=["GET", "HEAD", "POST", "DELETE"],
            # OpenAI's own client sends a dozen of its own.
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After", "X-Should-Retry"],
        )
    if settings.otlp_traces_endpoint is not None:
        app.add_middleware(TraceHeaders)
    app.add_middleware(HeaderLimit, max_bytes=limits.max_header_bytes)
    app.add_middleware(FaultAnswer)
    app.add_middleware(RequestLog, refused=service.refused)
    if settings.root_path:
        app.add_middleware(RootPath, root_path=settings.root_path)
    app.add_middleware(RequestLine)


async def _tell(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _tell_invalid(http: HttpRequest, error: Exception) -> Response:
    """Report the first invalid field, by name and without its value."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return BadRequest("the body is not valid JSON").response()
    where = [str(part)[:40] for part in first["loc"][1:]]
    if not where:
        return BadRequest(
            "the body must be a JSON object, sent as Content-Type: application/json"
        ).response()
    return BadRequest(f"{'.'.join(where)}: {first['msg']}", param=where[0]).response()


async def _tell_http(http: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    cause = error.__cause__
    if isinstance(cause, RecursionError):
        return await _tell_nested(http, cause)
    if isinstance(cause, ValueError):  # of reading the body; FastAPI does not say which
        return BadRequest(f"the body cannot be read: {str(cause).partition(';')[0]}").response()
    headers = dict(error.headers or {})
    if headers.get("Allow") == "GET":
        headers["Allow"] = "GET, HEAD"
    return HttpError(error.status_code, str(error.detail), headers).response()


async def _tell_nested(http: HttpRequest, error: Exception) -> Response:
    return BadRequest("the body is nested too deeply").response()
