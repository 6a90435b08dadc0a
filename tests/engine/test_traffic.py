"""Copy-on-write, swap, recomputation and prefix hits, mixed at random: as if each were alone."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from tests.engine.traffic_driver import TrafficDriver

VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"max_num_batched_tokens": 16},
    {"max_num_partial_prefills": 3, "priority_aging_steps": 5, "length_aware": True},
    {"enable_prefix_caching": False},
)


def drive(seed: int, events: int, host_blocks: int, **options: Any) -> TrafficDriver:
    options["num_cpu_blocks_override"] = host_blocks
    driver = TrafficDriver(random.Random(seed), options, failures=seed % 2 == 0)
    driver.run(events)
    return driver


def test_random_traffic() -> None:
    done: Counter[str] = Counter()
    for seed, host_blocks in enumerate((40, 12, 80, 6, 40, 0)):
        driver = drive(seed, 500, host_blocks, **VARIANTS[seed % 4])
        stats = driver.engine.stats()
        done += driver.done
        done["computed again"] += stats.preemptions - stats.preemptions_swapped
        done["swapped"] += stats.preemptions_swapped
        done["copies"] += stats.cow_copies
        done["hits"] += stats.prefix_cache_hits
        done["bytes in"] += stats.swap_bytes_in
    for what in (
        *("answered", "preempted and answered", "abort", "reset", "failed"),
        *(
            "computed again",
            "swapped",
            "copies",
            "hits",
            "bytes in",
            "aborted in host memory",
            "searches in host memory",
        ),
    ):
        assert done[what], f"no {what}: the driver proves nothing about it"


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 120))
def test_much_random_traffic(seed: int) -> None:
    drive(seed, 5_000, (0, 6, 12, 40, 80)[seed % 5], **VARIANTS[seed % 4])
