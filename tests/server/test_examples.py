"""The examples: the Java client, and monitoring that asks for metrics which exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.regressions.test_metrics import Scrape
from tests.server.tiny_server import TinyServer, serving

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
METRIC = re.compile(r"\b(?:vllm|paxkv):\w+")


def test_monitoring_asks_for_metrics_that_exist(server: TinyServer) -> None:
    known = {sample.name for sample in Scrape(server).samples}
    dashboard = json.loads((EXAMPLES / "monitoring" / "dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(asked) > 15
    alerts = (EXAMPLES / "monitoring" / "alerts.yml").read_text()
    for text in [*asked, alerts]:
        names = METRIC.findall(text)
        assert names
        assert set(names) <= known
    assert [panel["id"] for panel in dashboard["panels"]] == list(range(1, 13))


@pytest.mark.skipif(shutil.which("javac") is None, reason="no JDK is installed")
def test_the_java_client_waits_for_a_busy_server() -> None:
    """Its first try meets a server that is shutting down, as far as it is told."""
    with serving() as server:
        loop = server.service.loop
        loop.draining = True
        client = subprocess.Popen(
            [
                "java",
                EXAMPLES / "java" / "PaxkvClient.java",
                f"http://127.0.0.1:{server.port}",
                "hi",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        server.wait_until(lambda: bool(server.server.server_state.total_requests), seconds=60)
        assert client.poll() is None
        loop.draining = False
        output, errors = client.communicate(timeout=60)
        assert client.returncode == 0, errors
        whole, *chunks = [json.loads(line) for line in output.splitlines()]
        text = whole["choices"][0]["message"]["content"]
        assert text
        deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
        assert "".join(deltas) == text
