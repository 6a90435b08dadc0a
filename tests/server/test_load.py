"""Many streams at once, some of which go away, run out of time or are wrong: the rest is right."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.load import KINDS, load, real_load
from tests.server.tiny_server import TinyModel

FLAT = 1.02
# Of each kind; how many fit into the time is the machine's affair.
ENOUGH = 20


def check(figures: dict[str, Any]) -> None:
    counts = figures["requests"]
    assert {name.split(":")[0] for name in counts} >= set(KINDS), counts
    assert any(name.endswith(": 503") for name in counts), "the queue was never full"
    assert counts["answers equal, finished"] >= ENOUGH
    assert counts["answers equal, cut short"] >= ENOUGH
    assert figures["preemptions"] > 0
    assert figures["resident_end_over_start"] < FLAT, figures


def test_two_hundred_streams_for_a_minute() -> None:
    model = TinyModel(max_num_seqs=16, num_gpu_blocks_override=120)
    prompts = ["the cat", "sat on", "the mat and the dog ran"]
    check(load(model, "tiny", prompts, clients=200, warm=15, seconds=45))


@pytest.mark.full
def test_two_hundred_streams_of_the_real_model() -> None:
    check(real_load(200, 300))
