"""RequestSpans: an OpenTelemetry span for each request, as vLLM names it and its attributes.

Needs the extra `otel`, imported only when traces are asked for.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from paxkv.engine.request import Request
from paxkv.server.deltas import Deltas

NAME = "llm_request"
TRACE_HEADERS = (b"traceparent", b"tracestate")
_NANO = 1e9
_headers: ContextVar[dict[str, str]] = ContextVar("trace_headers", default={})  # noqa: B039


class TraceHeaders:
    """Keeps a request's trace context for the spans of its engine requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            found = {
                name.decode(): value.decode("latin-1")
                for name, value in scope["headers"]
                if name in TRACE_HEADERS
            }
            _headers.set(found)
        await self._app(scope, receive, send)


def otlp_exporter(endpoint: str) -> Any:
    """Make an exporter of spans to a collector. Raises ValueError saying what to install."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise ValueError("otlp_traces_endpoint needs: pip install 'paxkv[otel]'") from None
    return OTLPSpanExporter(endpoint=endpoint)


class RequestSpans:
    """An observer of the engine's loop: a span from a request's arrival to its end.

    exporter: OpenTelemetry's; it is called in a thread of its own. No span holds text.
    """

    def __init__(self, exporter: Any, model_name: str) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._provider = TracerProvider(resource=Resource.create({"service.name": "paxkv"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("paxkv.server")
        self._model_name = model_name
        self._contexts: dict[str, Any] = {}
        self._past = time.time() - time.monotonic()  # seconds from one clock to the other

    def close(self) -> None:
        """Send the remaining spans."""
        self._provider.shutdown()

    def arrived(self, request: Request) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = TraceContextTextMapPropagator().extract(_headers.get())
        self._contexts[request.request_id] = context

    def stepped(self, num_tokens: int) -> None:
        pass

    def advanced(self, deltas: Deltas) -> None:
        if deltas.ended is not None:
            self._end(deltas.request, deltas.ended, deltas.time)

    def aborted(self, request: Request) -> None:
        self._end(request, "abort", time.monotonic())

    def _end(self, request: Request, reason: str, end: float) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode

        if request.request_id not in self._contexts:
            return
        span = self._tracer.start_span(
            NAME,
            context=self._contexts.pop(request.request_id),
            kind=SpanKind.SERVER,
            start_time=self._wall(request.arrival_time),
            attributes=self._attributes(request, reason, end),
        )
        if reason == "error":
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_time=self._wall(end))

    def _wall(self, seconds: float) -> int:
        """Nanoseconds since 1970 at a time of `time.monotonic`."""
        return int((seconds + self._past) * _NANO)

    def _attributes(self, request: Request, reason: str, end: float) -> dict[str, Any]:
        params = request.sampling_params
        arrival, start, first = request.arrival_time, request.first_scheduled, request.first_token
        sampled = sum(len(sequence.output_token_ids) for sequence in request.sequences)
        found = {
            "gen_ai.request.id": request.request_id,
            "gen_ai.response.model": self._model_name,
            "gen_ai.response.finish_reasons": [reason],
            "gen_ai.request.max_tokens": request.max_tokens,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.n": params.n,
            "gen_ai.usage.prompt_tokens": request.num_prompt,
            "gen_ai.usage.completion_tokens": sampled,
            "gen_ai.latency.e2e": end - arrival,
        }
        if start is not None:
            found["gen_ai.latency.time_in_queue"] = start - arrival
        if start is not None and first is not None:
            found["gen_ai.latency.time_to_first_token"] = first - arrival
            found["gen_ai.latency.time_in_model_prefill"] = first - start
            found["gen_ai.latency.time_in_model_decode"] = max(0.0, end - first)
        return found
