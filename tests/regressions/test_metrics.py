"""Bug bank: metrics, over HTTP."""

from __future__ import annotations

import json
import logging
import math
import socket
import subprocess
import sys
import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from paxkv.server.limits import RequestLimits
from paxkv.server.metrics.engine_snapshot import fragmentation
from paxkv.server.metrics.requests import RecentMean
from paxkv.server.middleware.request_log import LogFormatter
from tests.server.tiny_server import TinyModel, TinyServer, chat, completion, serving

LABELS = {"model_name": "tiny", "engine": "0"}
NAMES = """
num_requests_running num_requests_waiting num_requests_swapped kv_cache_usage_perc
gpu_cache_usage_perc prefix_cache_queries_total prefix_cache_hits_total num_preemptions_total
prompt_tokens_total generation_tokens_total request_success_total time_to_first_token_seconds_sum
inter_token_latency_seconds_count request_time_per_output_token_seconds_count
e2e_request_latency_seconds_count request_queue_time_seconds_count
request_prefill_time_seconds_count request_decode_time_seconds_count
request_inference_time_seconds_count request_prompt_tokens_count request_generation_tokens_count
request_params_n_count request_params_max_tokens_count request_max_num_generation_tokens_count
iteration_tokens_total_count cache_config_info gpu_memory_utilization avg_time_per_token_ms
memory_fragmentation_ratio
""".split()


class Scrape:
    """One look at /metrics."""

    def __init__(self, server: TinyServer) -> None:
        reply = server.get("/metrics")
        assert reply.status == 200
        assert reply.headers["content-type"].startswith("text/plain")
        self.samples = [
            sample
            for family in text_string_to_metric_families(reply.content.decode())
            for sample in family.samples
        ]

    def __getitem__(self, name: str) -> float:
        (value,) = [s.value for s in self.samples if s.name == f"vllm:{name}"]
        return value

    def ended(self, reason: str) -> float:
        (value,) = [s.value for s in self.samples if s.labels.get("finished_reason") == reason]
        return value


def check_idle(scrape: Scrape) -> None:
    for gauge in ("running", "waiting", "swapped"):
        assert scrape[f"num_requests_{gauge}"] == 0
    assert scrape["kv_cache_usage_perc"] == 0
    assert scrape["memory_fragmentation_ratio"] == 1


def test_the_names_are_vllms() -> None:
    with serving() as server:
        assert server.post("/v1/completions", completion()).status == 200
        scrape = Scrape(server)
        known = {sample.name for sample in scrape.samples}
        assert {f"vllm:{name}" for name in NAMES} <= known
        for sample in scrape.samples:
            if sample.name == "vllm:cache_config_info":
                assert sample.labels["block_size"] == "4"
            elif not sample.name.startswith("process_"):
                assert sample.labels.items() >= LABELS.items(), sample
            assert math.isfinite(sample.value)
        check_idle(scrape)


def test_counts_are_exact() -> None:
    with serving() as server:
        server.model.engine.runner.hooks.before_launch = lambda _: time.sleep(0.002)
        before = Scrape(server)
        sampled = prompt = cached = 0
        bodies: list[dict[str, Any]] = [
            completion("the cat", max_tokens=5),
            completion(["one", "two three"], max_tokens=7),
            completion("the cat", n=3, max_tokens=4),
            completion([9] * 30, max_tokens=3),
            completion([9] * 30, max_tokens=3),
        ]
        for body in bodies:
            usage = server.post("/v1/completions", body).json()["usage"]
            sampled += usage["completion_tokens"]
            prompt += usage["prompt_tokens"]
            cached += usage["prompt_tokens_details"]["cached_tokens"]
        events = server.events("/v1/completions", completion([8] * 5, max_tokens=6))
        assert len(events) > 2
        sampled, prompt = sampled + 6, prompt + 5
        assert server.post("/v1/chat/completions", chat(n=0)).status == 400
        after = Scrape(server)

        def grown(name: str) -> float:
            return after[name] - before[name]

        assert grown("generation_tokens_total") == sampled
        assert grown("prompt_tokens_total") == prompt
        assert grown("prefix_cache_queries_total") == prompt
        assert grown("prefix_cache_hits_total") == cached == 28
        assert after.ended("length") == 7
        for histogram in ("time_to_first_token_seconds", "e2e_request_latency_seconds"):
            assert grown(f"{histogram}_count") == 7
        assert grown("request_generation_tokens_sum") == sampled
        assert grown("request_params_n_sum") == 9
        # One gap for each step of a request but its first.
        assert grown("inter_token_latency_seconds_count") == 4 + 6 + 6 + 3 + 2 + 2 + 5
        assert grown("e2e_request_latency_seconds_sum") >= grown("time_to_first_token_seconds_sum")
        # Every prompt token but those cached was computed once, and every sampled one but the last.
        sequences = 9
        computed = prompt - cached + sampled - sequences
        assert grown("iteration_tokens_total_sum") == computed
        assert after["avg_time_per_token_ms"] > 2
        check_idle(after)


def test_gauges_follow_and_aborts_count() -> None:
    with serving() as server:
        server.model.engine.runner.hooks.before_launch = lambda _: time.sleep(0.01)
        held = [
            server.open("POST", "/v1/completions", completion([5] * 10, max_tokens=400))
            for _ in range(6)
        ]
        server.wait_until(lambda: server.on_engine(lambda e: e.stats().running) == 4)
        scrape = Scrape(server)
        assert (scrape["num_requests_running"], scrape["num_requests_waiting"]) == (4, 2)
        assert 0 < scrape["kv_cache_usage_perc"] == scrape["gpu_cache_usage_perc"] < 1
        assert 1 <= scrape["memory_fragmentation_ratio"] < 4
        for connection in held:
            connection.close()
        server.wait_until(lambda: not server.service.loop.calls)
        scrape = Scrape(server)
        assert scrape.ended("abort") == 6
        check_idle(scrape)


def test_beams_have_their_first_token_when_it_is_drawn() -> None:
    """They are told of at their end, steps later; metrics and page know when the first came."""
    with serving() as server:
        body = completion("the cat", use_beam_search=True, n=2, max_tokens=8)
        assert server.post("/v1/completions", body).status == 200  # compiles
        before = Scrape(server)
        server.model.engine.runner.hooks.before_launch = lambda _: time.sleep(0.03)
        assert server.post("/v1/completions", {**body, "prompt": "the dog"}).status == 200
        after = Scrape(server)
        server.model.engine.runner.hooks.before_launch = None
        first, whole = (
            after[f"{name}_seconds_sum"] - before[f"{name}_seconds_sum"]
            for name in ("time_to_first_token", "e2e_request_latency")
        )
        name = "time_to_first_token_seconds_count"
        assert after[name] - before[name] == 1
        assert 0.03 <= first < whole / 2
        assert whole >= 8 * 0.03
        shown = server.get("/page/state").json()["traffic"]["first_tokens"][-1][1]
        assert shown == pytest.approx(first, abs=1e-4)


def test_mt_01_hits_are_counted_once() -> None:
    """Not again when a preempted request meets its own blocks, or one that waits is looked at."""
    model = TinyModel(num_gpu_blocks_override=20, max_num_seqs=4)
    with serving(model) as server:
        before = Scrape(server)
        prompts = [[10 + number] + [20] * 19 for number in range(6)]
        body = completion(prompts, max_tokens=40)
        reply = server.post("/v1/completions", body)
        assert reply.json()["usage"]["completion_tokens"] == 240
        scrape = Scrape(server)
        assert scrape["num_preemptions_total"] > 0
        queries = scrape["prefix_cache_queries_total"] - before["prefix_cache_queries_total"]
        assert (queries, scrape["prefix_cache_hits_total"]) == (120, 0)
        check_idle(scrape)


def test_fragmentation_counts_shared_pages_once() -> None:
    from paxkv.memory import BlockManager

    memory = BlockManager(20, 4, max_rows=4, max_blocks_per_row=8)
    assert fragmentation(memory) == 1.0
    allocation = memory.allocate(list(range(5)), chain=memory.chain(), first_chunk=5)
    assert allocation is not None
    assert fragmentation(memory) == 8 / 5
    memory.fork(allocation.row, 2)
    assert fragmentation(memory) == 8 / 5


def test_the_recent_mean_forgets() -> None:
    recent = RecentMean(60)
    assert recent.mean(0) == 0
    for time_, value in ((0.2, 1.0), (0.9, 3.0), (30, 5.0)):
        recent.add(value, time_)
    assert recent.mean(31) == pytest.approx(3.0)
    assert recent.mean(70) == pytest.approx(5.0)
    assert recent.mean(200) == 0


def refused(server: TinyServer) -> dict[str, float]:
    """Of `paxkv:requests_refused_total`, by code, those above 0."""
    found = [s for s in Scrape(server).samples if s.name == "paxkv:requests_refused_total"]
    return {s.labels["code"]: s.value for s in found if s.value}


def test_refusals_are_counted_and_logged_by_code(caplog: pytest.LogCaptureFixture) -> None:
    """Kind: what fails before it reaches the engine is in no figure."""
    caplog.set_level(logging.INFO)
    limits = RequestLimits(max_body_bytes=3000, max_header_bytes=4096)
    with serving(limits=limits) as server:
        post, path = server.post, "/v1/completions"
        assert not refused(server)
        assert post(path, completion()).status == 200
        assert not refused(server)
        assert post(path, completion(model="other")).status == 404
        assert post(path, completion(n=0)).status == 400
        assert post(path, completion(suffix="x")).status == 400
        assert post(path, completion("a" * 4000)).status == 413
        assert server.get("/nowhere").status == 404
        assert server.get("/health", headers={"X": "x" * 5000}).status == 431
        assert post(path, completion(), headers={"Content-Encoding": "br"}).status == 415
        raw = b"GET /health HTTP/1.1\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(raw)
            assert connection.recv(12) == b"HTTP/1.1 400"
        server.model.engine.runner.hooks.before_launch = lambda _: time.sleep(0.05)
        assert post(path, completion(max_tokens=50, timeout=0.1)).status == 408
        events = server.events(path, completion(max_tokens=50, timeout=0.3))
        assert "error" in events[-2]
        assert refused(server) == {
            "model_not_found": 1,
            "invalid_request_error": 5,
            "unsupported": 1,
            "unsupported_content_encoding": 1,
            "timeout_error": 1,  # not that of the stream, which had been answered
        }
        # Those that an alert asks for are there before the first.
        assert {"queue_full", "queue_wait"} <= {
            s.labels["code"] for s in Scrape(server).samples if "code" in s.labels
        }
    lines = [record.fields for record in caplog.records if hasattr(record, "fields")]
    codes = {(line["status"], line["code"]) for line in lines if "code" in line}
    assert codes >= {(404, "model_not_found"), (408, "timeout_error"), (200, "timeout_error")}
    assert not any("code" in line for line in lines if line["path"] == "/metrics")


def test_the_process_is_in_the_metrics() -> None:
    with serving() as server:
        names = {sample.name for sample in Scrape(server).samples}
    assert {
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_cpu_seconds_total",
    } <= names


def test_log_times_have_their_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kind: a time that cannot be compared with another machine's."""
    record = logging.LogRecord("paxkv", logging.INFO, "", 0, "hello", (), None)
    for zone, offset in (("UTC", 0), ("IST-5:30", 19800)):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        told = json.loads(LogFormatter(as_json=True).format(record))["time"]
        moment = datetime.fromisoformat(told)
        assert moment.utcoffset() == timedelta(seconds=offset)
        assert abs(moment.timestamp() - record.created) < 0.002
    monkeypatch.undo()
    time.tzset()


def test_a_start_on_the_cpu_names_no_missing_device() -> None:
    """Kind: another program's log line that reads as a fault of ours."""
    start = (
        "from paxkv.server.middleware.request_log import configure_logging as c; c(False, 'info'); "
        "import jax; jax.devices(); import logging; logging.getLogger('paxkv').info('started')"
    )
    ran = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert "started" in ran.stderr
    assert "Unable to initialize" not in ran.stderr
