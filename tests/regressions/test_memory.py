"""Bug bank, memory: how many pages there are."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from paxkv.engine.build import build_engine
from paxkv.engine.config import EngineConfig
from paxkv.engine.runner.device_memory import DeviceMemory, PoolSize, claim, pool_size, step_memory
from paxkv.models.weight_store import Weights
from tests.engine.tiny import CONFIG, Tiny, greedy, ids, params
from tests.regressions.engines import assert_dense, small, tokens

GIB = 1 << 30
LAYOUT: Any = SimpleNamespace(bytes_per_page=1 << 20)
MODEL_LEN = 512


def pool(device: DeviceMemory | None = None, step: int = 0, **options: Any) -> PoolSize:
    config = EngineConfig(**options).resolve(CONFIG)
    return pool_size(LAYOUT, config, device, lambda num_pages: step)


@pytest.mark.parametrize("blocks", [1, 3, 33, 60])
def test_mm_01_an_explicit_count_is_the_count(blocks: int) -> None:
    size = pool(num_gpu_blocks_override=blocks)
    assert size.num_blocks == blocks
    assert size.num_pages > blocks
    assert small(num_gpu_blocks_override=blocks).engine.stats().free_blocks == blocks


def test_mm_01_an_override_inside_a_cell_keeps_the_shape() -> None:
    assert (
        pool(num_gpu_blocks_override=110).num_pages == pool(num_gpu_blocks_override=105).num_pages
    )


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("step", [0, 5 * GIB])
def test_mm_01_a_share_of_the_device_less_weights_and_the_largest_step(
    share: float, step: int
) -> None:
    size = pool(DeviceMemory(100 * GIB, 10 * GIB), step, gpu_memory_utilization=share)
    left = (int(100 * GIB * share) - 10 * GIB - step) // LAYOUT.bytes_per_page
    assert size.num_blocks == size.num_pages - 1
    # The grid's points are a quarter of a power of two apart.
    assert 0.8 * left < size.num_pages <= left


def test_mm_01_a_little_less_free_memory_keeps_the_shape() -> None:
    found = {pool(DeviceMemory(100 * GIB, 12 * GIB + used)).num_pages for used in (0, 1, GIB)}
    assert len(found) == 1


@pytest.mark.parametrize(
    ("used", "step"), [(1 << 28, 0), (GIB + 1, 0), (10 * GIB, 0), (0, 99 * GIB)]
)
def test_mm_01_too_little_memory_fails_with_numbers_and_the_fix(used: int, step: int) -> None:
    with pytest.raises(ValueError, match=r"gpu_memory_utilization=0.001.*GiB") as caught:
        pool(DeviceMemory(100 * GIB, used), step, gpu_memory_utilization=0.001, block_size=1)
    message = str(caught.value)
    assert "raise gpu_memory_utilization or lower max_model_len" in message
    missing = 640 * LAYOUT.bytes_per_page + used + step - int(100 * GIB * 0.001)
    assert f"so {missing / GIB:.3f} GiB are missing" in message


def test_mm_01_the_missing_memory_is_what_is_missing() -> None:
    """With as much more as the message asks for, and a rounding of it, the engine starts."""
    device = DeviceMemory(100 * GIB, 10 * GIB)
    with pytest.raises(ValueError, match="so 0.586 GiB are missing"):
        pool(device, 90 * GIB - 40 * LAYOUT.bytes_per_page, block_size=1, gpu_memory_utilization=1)
    more = DeviceMemory(100 * GIB + int(0.587 * GIB), 10 * GIB)
    size = pool(more, 90 * GIB - 40 * LAYOUT.bytes_per_page, block_size=1, gpu_memory_utilization=1)
    assert size.num_blocks >= MODEL_LEN


@pytest.mark.parametrize(
    "options", [{"num_gpu_blocks_override": 3000}, {"kv_cache_memory_bytes": 3 * GIB}]
)
def test_mm_01_more_than_the_device_has_is_refused_at_start(options: dict[str, int]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"{name}=.*missing of the device's 4.000 GiB: lower"):
        pool(DeviceMemory(4 * GIB, GIB), GIB, **options)
    assert pool(DeviceMemory(8 * GIB, GIB), GIB, **options).num_blocks > 2000
    assert pool(None, **options).num_blocks > 2000


def test_mm_01_bytes_that_hold_less_than_one_sequence() -> None:
    with pytest.raises(ValueError, match="kv_cache_memory_bytes=.*GiB.*max_model_len"):
        pool(kv_cache_memory_bytes=20 << 20)
    assert pool(kv_cache_memory_bytes=40 << 20).num_blocks * 16 >= MODEL_LEN


@pytest.mark.parametrize("wrong", [0, -1, 1.5, float("nan"), float("inf"), True, None])
def test_mm_01_shares_outside_0_to_1_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="gpu_memory_utilization"):
        EngineConfig(gpu_memory_utilization=wrong)


# Memory that statistics promise and the device does not have


def device_with(free: int) -> Any:
    def allocate(num_bytes: int) -> None:
        if num_bytes > free:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    return allocate


def test_mm_01_a_share_that_others_hold_is_refused_at_start() -> None:
    claim(4 * GIB, device_with(4 * GIB), "gpu_memory_utilization")
    with pytest.raises(ValueError, match=r"gpu_memory_utilization counts on 4.000 GiB") as caught:
        claim(4 * GIB, device_with(3 * GIB), "gpu_memory_utilization")
    assert "1.000 GiB are missing" in str(caught.value)


def test_mm_01_another_failure_is_not_taken_for_lack_of_memory() -> None:
    def allocate(num_bytes: int) -> None:
        raise jax.errors.JaxRuntimeError("INTERNAL: no device")

    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        claim(4 * GIB, allocate, "gpu_memory_utilization")


# The largest step, measured


def measured(**options: Any) -> Any:
    return step_memory(Tiny(**options).engine.runner.programs)


def test_mm_01_the_largest_step_covers_every_program() -> None:
    tiny = Tiny(max_num_batched_tokens=48, max_num_seqs=6)
    table = tiny.engine.runner.programs
    found = step_memory(table)
    for program, variant in table.all():
        table.get(program, variant)
    assert len(table.compiler.names) > 10
    for name in table.compiler.names:
        analysis = table.compiler.get(name, *[None] * 2).memory_analysis()
        new = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
        assert analysis.temp_size_in_bytes + new <= found.transient, name
    runner = tiny.engine.runner
    held = (runner._tables, runner._last_tokens, runner._counts)
    assert found.state == sum(x.nbytes for x in jax.tree.leaves(held))


def test_mm_01_it_grows_with_the_tokens_of_a_step_and_not_with_the_pages() -> None:
    some = measured(max_num_batched_tokens=32, num_gpu_blocks_override=100)
    assert measured(max_num_batched_tokens=32, num_gpu_blocks_override=900) == some
    many = measured(max_num_batched_tokens=128, num_gpu_blocks_override=100)
    # 96 more tokens of gate, up and their product, 64 float32 each, all alive at one time.
    assert many.transient - some.transient > 96 * 3 * 64 * 4
    assert many.transient < 6 * some.transient


def test_mm_01_an_engine_on_a_device_with_statistics_fits_into_its_share() -> None:
    layout_bytes = 2 * CONFIG.num_layers * CONFIG.num_kv_heads * CONFIG.head_dim * 4 * 4
    step = measured()

    def engine(limit: int, share: float) -> Any:
        stats = {"bytes_limit": limit, "bytes_in_use": 100_000}
        options = EngineConfig(
            block_size=4,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            max_model_len=128,
            gpu_memory_utilization=share,
            enforce_eager=True,
        )
        device = SimpleNamespace(memory_stats=lambda: stats)
        return build_engine(Weights.of(params()), CONFIG, options, device=device)

    limit = 20_000_000
    blocks = engine(limit, 0.5).stats().num_blocks
    left = limit * 0.5 - 100_000 - step.total
    assert 0.75 * left < (blocks + 1) * layout_bytes < 1.02 * left
    with pytest.raises(ValueError, match=r"gpu_memory_utilization=1\.0 .*for the largest step"):
        engine(step.total + 120_000, 1.0)


def test_mm_01_the_worst_load_runs_in_the_smallest_memory_that_starts() -> None:
    """All rows, all tokens, alternatives and scores: the CPU cannot run out, but must not fail."""
    tiny = Tiny(max_model_len=64, max_num_seqs=8, num_gpu_blocks_override=16)
    sampling = greedy(4, logprobs=5, prompt_logprobs=5)
    for output in tiny.generate([ids(50, salt=k) for k in range(8)], sampling):
        assert_dense(output.prompt_token_ids, tokens(output))


def test_mm_01_an_engine_that_nobody_holds_gives_its_memory_back_at_once() -> None:
    """Not when Python's collector next looks for cycles: a notebook makes the next one now."""
    tiny = Tiny()
    tiny.tokens(ids(5), greedy(2))
    held = [
        weakref.ref(x) for x in (tiny.engine, tiny.engine.runner, tiny.engine.runner._pages[0][0])
    ]
    gc.collect()
    gc.disable()
    try:
        del tiny
        assert [reference() for reference in held] == [None] * len(held)
    finally:
        gc.enable()
