"""EngineMetrics: gauges and counters, read off the engine on each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from paxkv.server.metrics.engine_snapshot import EngineSnapshot, memory_utilization

LABELS = ("model_name", "engine")
ENGINE = "0"


class EngineMetrics(Collector):
    """Metrics under vLLM's current and older names; those that vLLM lacks begin with `paxkv:`.

    snapshot: the statistics shown; renewed before each scrape.
    """

    def __init__(self, model_name: str) -> None:
        self._labels = (model_name, ENGINE)
        self.snapshot: EngineSnapshot | None = None
        self.time_per_token_ms = 0.0

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        snapshot = self.snapshot
        if snapshot is None:
            return
        stats = snapshot.stats
        usage = stats.used_blocks / stats.num_blocks
        host = stats.cpu_used_blocks / stats.num_cpu_blocks if stats.num_cpu_blocks else 0.0
        for name, value, text in (
            ("vllm:num_requests_running", snapshot.running, "Requests that run."),
            ("vllm:num_requests_waiting", snapshot.waiting, "Requests that wait."),
            ("vllm:num_requests_swapped", snapshot.swapped, "Requests in host memory."),
            ("vllm:kv_cache_usage_perc", usage, "Share of the pages in use, 0 to 1."),
            ("vllm:gpu_cache_usage_perc", usage, "The same under its older name."),
            ("vllm:cpu_cache_usage_perc", host, "Share of the host's pages in use, 0 to 1."),
            ("vllm:gpu_memory_utilization", memory_utilization(), "Share of memory in use."),
            ("vllm:avg_time_per_token_ms", self.time_per_token_ms, "Mean over the last minute."),
            (
                "vllm:memory_fragmentation_ratio",
                snapshot.fragmentation,
                "Slots of the pages in use, over the slots that are filled.",
            ),
            ("paxkv:cached_blocks", stats.cached_blocks, "Pages the prefix cache knows."),
            ("paxkv:shared_blocks", stats.shared_blocks, "Pages in several block tables."),
            ("paxkv:compiled_programs", len(stats.compiled_programs), "Programs compiled."),
        ):
            yield self._gauge(name, value, text)
        for name, value, text in (
            ("vllm:num_preemptions", stats.preemptions, "Preemptions."),
            ("vllm:prefix_cache_queries", stats.prefix_cache_queries, "Prompt tokens looked up."),
            ("vllm:prefix_cache_hits", stats.prefix_cache_hits, "Prompt tokens found."),
            ("paxkv:cow_copies", stats.cow_copies, "Pages copied on write."),
            ("paxkv:swap_out_bytes", stats.swap_bytes_out, "Moved to host memory."),
            ("paxkv:swap_in_bytes", stats.swap_bytes_in, "Moved back from it."),
            ("paxkv:engine_steps", stats.num_steps, "Steps run."),
        ):
            yield self._counter(name, value, text)
        yield self._configuration(snapshot)

    def _gauge(self, name: str, value: float, text: str) -> Metric:
        family = GaugeMetricFamily(name, text, labels=LABELS)
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, value: float, text: str) -> Metric:
        family = CounterMetricFamily(name, text, labels=LABELS)
        family.add_metric(self._labels, value)
        return family

    def _configuration(self, snapshot: EngineSnapshot) -> Metric:
        options = {
            "num_gpu_blocks": str(snapshot.stats.num_blocks),
            "num_cpu_blocks": str(snapshot.stats.num_cpu_blocks),
            **snapshot.cache_options,
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info",
            "The cache's configuration, as labels.",
            labels=("engine", *options),
        )
        family.add_metric((ENGINE, *options.values()), 1)
        return family
