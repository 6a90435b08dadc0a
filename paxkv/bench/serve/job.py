"""ServeJob: options of `bench serve` besides arrivals and prompts, and its run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from paxkv.bench.serve.arrivals import ArrivalProcess
from paxkv.bench.serve.client import Client, require_aiohttp, stopwatch
from paxkv.bench.serve.datasets import Ask, DatasetOptions
from paxkv.bench.serve.outcome import Outcome
from paxkv.bench.serve.run import PeakMemory, run_load
from paxkv.bench.serve.statistics import samples, summarize

ENDPOINTS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}
READ_BUFFER = 2**20


@dataclass(frozen=True)
class ServeJob:
    """Which server, and how it is asked.

    Attributes:
        base_url: of the server.
        backend: openai asks /v1/completions, openai-chat asks /v1/chat/completions.
        endpoint: another path.
        model: name in the requests, by default the first one the server lists.
        temperature: of requests that have none of their own.
        ignore_eos: every answer goes on to its full length.
        num_warmups: requests sent before the clock starts.
        seed: of arrivals and made-up prompts.
        request_timeout: seconds after which a request counts as failed.
        server_pid: process of a server on this machine, whose peak memory is told.
        api_key: sent as a bearer token; the environment's OPENAI_API_KEY by default.
    """

    base_url: str = "http://127.0.0.1:8000"
    backend: Literal["openai", "openai-chat"] = "openai"
    endpoint: str | None = None
    model: str | None = None
    temperature: float | None = None
    ignore_eos: bool = False
    num_warmups: int = 1
    seed: int = 0
    request_timeout: float = 3600.0
    server_pid: int | None = None
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url is {self.base_url!r}, must begin with http:// or https://")
        if self.num_warmups < 0:
            raise ValueError(f"num_warmups is {self.num_warmups}, must be at least 0")
        if not self.request_timeout > 0:
            raise ValueError(f"request_timeout is {self.request_timeout}, must be above 0")

    @property
    def url(self) -> str:
        return self.base_url.rstrip("/") + (self.endpoint or ENDPOINTS[self.backend])

    def fields(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.temperature is not None:
            found["temperature"] = self.temperature
        if self.ignore_eos:
            found["ignore_eos"] = True
        return found


async def run_serve(
    job: ServeJob,
    arrivals: ArrivalProcess,
    dataset: DatasetOptions,
    *,
    concurrencies: Sequence[int | None] = (None,),
    percentiles: Sequence[float] = (50, 95, 99),
    goodput: dict[str, float] | None = None,
    progress: Any = None,
) -> list[dict[str, Any]]:
    """A report for each concurrency, run one after the other.

    progress: called with the concurrency and the number of requests, gives a function to be
    called at each end. Raises ValueError if the server cannot be reached or a request before the
    clock starts fails.
    """
    aiohttp = require_aiohttp()
    # Made-up prompts are others in each run, so that none is cached by the one before.
    runs = [dataset.asks(job.seed + number) for number in range(len(concurrencies) + 1)]
    times = arrivals.times(dataset.num_prompts, job.seed).tolist()
    headers = {} if job.api_key is None else {"Authorization": f"Bearer {job.api_key}"}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=job.request_timeout),
        read_bufsize=READ_BUFFER,
        headers=headers,
        trust_env=False,
    ) as session:
        model = job.model or await _first_model(session, job)
        client = Client(session, job.url, model, job.fields())
        for ask in runs[0]:
            client.body(ask)
        await _warm_up(client, runs.pop(), job.num_warmups)
        reports = []
        for concurrency, asks in zip(concurrencies, runs, strict=True):
            memory = None if job.server_pid is None else PeakMemory(job.server_pid)
            tell = progress(concurrency, len(asks)) if progress else lambda: None
            outcomes, duration = await run_load(
                client,
                asks,
                times,
                max_concurrency=concurrency,
                memory=memory,
                progress=tell,
            )
            report = {
                "endpoint": job.url,
                "model_id": model,
                "num_prompts": len(asks),
                "dataset": asdict(dataset),
                "arrivals": arrivals.as_json(),
                "max_concurrency": concurrency,
                "goodput": goodput,
                "peak_memory_bytes": memory and memory.bytes,
                **summarize(outcomes, duration, percentiles, goodput),
            }
            reports.append({**report, **_each(outcomes)})
    return reports


def _each(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Every request's own figures, in order: vLLM's lists, in seconds."""
    return {
        "input_lens": [outcome.prompt_tokens for outcome in outcomes],
        "output_lens": [outcome.output_tokens for outcome in outcomes],
        "start_times": [outcome.start for outcome in outcomes],
        "ttfts": [outcome.ttft for outcome in outcomes],
        "itls": [outcome.itls for outcome in outcomes],
        "latencies": [outcome.latency for outcome in outcomes],
        "errors": [outcome.error for outcome in outcomes],
        "samples_ms": samples([outcome for outcome in outcomes if outcome.succeeded]),
    }


async def _first_model(session: Any, job: ServeJob) -> str:
    url = job.base_url.rstrip("/") + "/v1/models"
    try:
        async with session.get(url) as response:
            if response.status != 200:
                raise ValueError(f"{url} answered {response.status}; give --model, or --api-key")
            return (await response.json())["data"][0]["id"]
    except (OSError, require_aiohttp().ClientError) as error:
        raise ValueError(f"base_url {job.base_url} cannot be reached: {error}") from None


async def _warm_up(client: Client, asks: Sequence[Ask], count: int) -> None:
    for number in range(count):
        outcome = await client.send(asks[number % len(asks)], stopwatch())
        if not outcome.succeeded:
            raise ValueError(f"a request before the run failed: {outcome.error}")
        print(f"warm-up {number + 1} of {count} done", file=sys.stderr)
