"""Bug bank, memory: how many pages there are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import pytest

from paxkv.engine.assembly import _pool
from paxkv.engine.config import EngineConfig
from tests.bank.engines import small

LAYOUT: Any = SimpleNamespace(bytes_per_page=1 << 20)
MODEL_LEN = 512


def pool(**options: Any) -> tuple[int, int]:
    return _pool(LAYOUT, EngineConfig(**options), MODEL_LEN)


def on_device(monkeypatch: pytest.MonkeyPatch, limit: int, used: int) -> None:
    device = SimpleNamespace(memory_stats=lambda: {"bytes_limit": limit, "bytes_in_use": used})
    monkeypatch.setattr(jax, "local_devices", lambda: [device])


@pytest.mark.parametrize("blocks", [1, 3, 33, 60])
def test_mm_01_an_explicit_count_is_the_count(blocks: int) -> None:
    pages, usable = pool(num_gpu_blocks_override=blocks)
    assert usable == blocks
    assert pages > blocks
    assert small(num_gpu_blocks_override=blocks).engine.stats().free_blocks == blocks


def test_mm_01_an_override_inside_a_cell_keeps_the_shape() -> None:
    assert pool(num_gpu_blocks_override=110)[0] == pool(num_gpu_blocks_override=105)[0]


def test_mm_01_a_share_of_the_device_less_what_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    on_device(monkeypatch, limit=100 << 30, used=10 << 30)
    pages, usable = pool(gpu_memory_utilization=0.5)
    assert usable == pages - 1
    assert (20 << 30) < pages * LAYOUT.bytes_per_page <= (40 << 30)


@pytest.mark.parametrize("used", [1 << 28, (1 << 30) + 1, 10 << 30])
def test_mm_01_too_little_memory_fails_with_numbers_and_the_fix(
    monkeypatch: pytest.MonkeyPatch, used: int
) -> None:
    on_device(monkeypatch, limit=100 << 30, used=used)
    with pytest.raises(ValueError, match=r"gpu_memory_utilization=0.001.*GiB") as caught:
        pool(gpu_memory_utilization=0.001, block_size=1)
    assert "max_model_len" in str(caught.value)


def test_mm_01_bytes_that_hold_less_than_one_sequence() -> None:
    with pytest.raises(ValueError, match="kv_cache_memory_bytes=.*GiB.*max_model_len"):
        pool(kv_cache_memory_bytes=20 << 20)
    assert pool(kv_cache_memory_bytes=40 << 20)[1] * 16 >= MODEL_LEN


@pytest.mark.parametrize("wrong", [0, -1, 1.5, float("nan"), float("inf"), True, None])
def test_mm_01_shares_outside_0_to_1_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="gpu_memory_utilization"):
        EngineConfig(gpu_memory_utilization=wrong)
