"""RequestMetrics: counters and histograms of requests."""

from __future__ import annotations

import itertools
from collections import deque

from prometheus_client import CollectorRegistry, Counter, Histogram

from paxkv.engine.request import Request
from paxkv.server.deltas import Deltas
from paxkv.server.errors import ApiError
from paxkv.server.metrics.engine import ENGINE, LABELS

# vLLM's buckets, in seconds and tokens.
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
               10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
             10.0, 20.0, 40.0, 80.0)  # fmt: skip
WHOLE = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
         240.0, 480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CHILDREN = (1, 2, 5, 10, 20)
MINUTE = 60
# Codes of errors that an operator can do something about; others are counted from their first on.
REFUSALS = (
    "bodies_full",
    "engine_dead",
    "queue_full",
    "queue_wait",
    "server_error",
    "timeout_error",
)


class RequestMetrics:
    """An observer of the engine's loop; times are those of the engine's thread. Requests for
    vectors count as requests with prompts, and have neither tokens nor a first one.

    most_tokens: max_model_len, which the buckets of token counts go up to.
    """

    def __init__(self, registry: CollectorRegistry, model_name: str, most_tokens: int) -> None:
        self._registry = registry
        self._labels = {"model_name": model_name, "engine": ENGINE}
        tokens = _one_two_five(most_tokens)
        histogram = self._histogram
        self._ttft = histogram("time_to_first_token_seconds", FIRST_TOKEN)
        self._itl = histogram("inter_token_latency_seconds", PER_TOKEN)
        self._old_itl = histogram("time_per_output_token_seconds", PER_TOKEN)
        self._tpot = histogram("request_time_per_output_token_seconds", PER_TOKEN)
        self._e2e = histogram("e2e_request_latency_seconds", WHOLE)
        self._queue = histogram("request_queue_time_seconds", WHOLE)
        self._prefill = histogram("request_prefill_time_seconds", WHOLE)
        self._decode = histogram("request_decode_time_seconds", WHOLE)
        self._inference = histogram("request_inference_time_seconds", WHOLE)
        self._step_tokens = histogram("iteration_tokens_total", STEP_TOKENS)
        self._prompt = histogram("request_prompt_tokens", tokens)
        self._generated = histogram("request_generation_tokens", tokens)
        self._longest = histogram("request_max_num_generation_tokens", tokens)
        self._wanted = histogram("request_params_max_tokens", tokens)
        self._children = histogram("request_params_n", CHILDREN)
        self._prompt_tokens = self._counter("prompt_tokens")
        self._generation_tokens = self._counter("generation_tokens")
        self._ended = Counter(
            "vllm:request_success",
            "Requests that ended, by reason.",
            (*LABELS, "finished_reason"),
            registry=registry,
        )
        for reason in ("stop", "length", "abort", "error"):
            self._ended.labels(**self._labels, finished_reason=reason)
        self._refused = Counter(
            "paxkv:requests_refused",
            "Requests answered with an error, by its code, or its type if it has none.",
            (*LABELS, "code"),
            registry=registry,
        )
        for code in REFUSALS:
            self._refused.labels(**self._labels, code=code)
        self.time_per_token = RecentMean(MINUTE)
        self._last_token: dict[str, float] = {}

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        text = name.replace("_", " ")
        made = Histogram(f"vllm:{name}", text, LABELS, buckets=buckets, registry=self._registry)
        return made.labels(**self._labels)

    def _counter(self, name: str) -> Counter:
        made = Counter(f"vllm:{name}", name.replace("_", " "), LABELS, registry=self._registry)
        return made.labels(**self._labels)

    def arrived(self, request: Request) -> None:
        if not request.generates:
            return
        self._wanted.observe(request.max_tokens)
        self._children.observe(request.sampling_params.n)

    def refused(self, error: ApiError) -> None:
        self._refused.labels(**self._labels, code=error.name).inc()

    def stepped(self, num_tokens: int) -> None:
        self._step_tokens.observe(num_tokens)

    def advanced(self, deltas: Deltas) -> None:
        if deltas.num_tokens:
            self._tokens(deltas)
        if deltas.ended is not None:
            self._end(deltas.request, deltas.ended)

    def aborted(self, request: Request) -> None:
        self._last_token.pop(request.request_id, None)
        self._count(request, "abort")

    def _tokens(self, deltas: Deltas) -> None:
        request = deltas.request
        last = self._last_token.get(request.request_id)
        self._last_token[request.request_id] = deltas.time
        if last is None:
            self._prompt_tokens.inc(request.num_prompt)
        if not request.generates:
            return
        self._generation_tokens.inc(deltas.num_tokens)
        if last is None:
            self._ttft.observe(deltas.first_token - request.arrival_time)
            return
        gap = deltas.time - last
        self._itl.observe(gap)
        self._old_itl.observe(gap)
        self.time_per_token.add(gap, deltas.time)

    def _end(self, request: Request, reason: str) -> None:
        last = self._last_token.pop(request.request_id, None)
        self._count(request, reason if request.generates or reason != "length" else "stop")
        if last is None or request.first_scheduled is None or request.first_token is None:
            return
        counts = [len(s.output_token_ids) for s in request.sequences]
        arrival, start, first = request.arrival_time, request.first_scheduled, request.first_token
        self._e2e.observe(last - arrival)
        self._queue.observe(start - arrival)
        self._prefill.observe(first - start)
        self._decode.observe(max(0.0, last - first))
        self._inference.observe(last - start)
        self._prompt.observe(request.num_prompt)
        if not request.generates:
            return
        self._generated.observe(sum(counts))
        self._longest.observe(max(counts))
        if max(counts) > 1:
            self._tpot.observe(max(0.0, last - first) / (max(counts) - 1))

    def _count(self, request: Request, reason: str) -> None:
        self._ended.labels(**self._labels, finished_reason=reason).inc()


def _one_two_five(most: int) -> tuple[int, ...]:
    steps = (digit * 10**power for power in itertools.count() for digit in (1, 2, 5))
    return tuple(itertools.takewhile(lambda value: value <= most, steps))


class RecentMean:
    """Mean over a sliding window, kept by the second.

    window: seconds.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._seconds: deque[tuple[int, float, int]] = deque()

    def add(self, value: float, time: float) -> None:
        second, total, count = int(time), value, 1
        if self._seconds and self._seconds[-1][0] == second:
            _, before, number = self._seconds.pop()
            total, count = before + value, number + 1
        self._seconds.append((second, total, count))
        self._forget(time)

    def mean(self, time: float) -> float:
        """Mean of the window; 0 if it is empty."""
        self._forget(time)
        count = sum(number for _, _, number in self._seconds)
        return sum(total for _, total, _ in self._seconds) / count if count else 0.0

    def _forget(self, time: float) -> None:
        while self._seconds and self._seconds[0][0] <= time - self._window - 1:
            self._seconds.popleft()
