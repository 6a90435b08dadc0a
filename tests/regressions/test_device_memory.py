"""Kind: memory counted or kept by other rules than the field's: a share of the device, given back
when an LLM is closed."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import jax
import pytest

from paxkv import LLM, SamplingParams
from paxkv.cli.engine_flags import FRACTION, OTHERS, PREALLOCATE, engine_arguments
from paxkv.cli.main import build_parser
from paxkv.engine.runner.device_memory import DeviceMemory
from tests.convert import tiny_models
from tests.regressions.test_memory import GIB, LAYOUT, pool


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (FRACTION, PREALLOCATE, *OTHERS):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    return monkeypatch


def given(*flags: str) -> tuple[str | None, str | None]:
    args = build_parser("serve").parse_args(["serve", "--model", "nowhere", *flags])
    engine_arguments(args)
    return os.environ.get(FRACTION), os.environ.get(PREALLOCATE)


def test_the_command_line_starts_jax_with_the_share_that_was_asked_for(
    environment: pytest.MonkeyPatch,
) -> None:
    assert given() == ("0.9", None)
    environment.delenv(FRACTION)
    assert given("--gpu-memory-utilization", "0.5") == ("0.5", None)
    environment.delenv(FRACTION)
    assert given("--kv-cache-memory-bytes", "1000000") == ("0.95", "false")


def test_what_the_environment_says_about_memory_stays(environment: pytest.MonkeyPatch) -> None:
    environment.setenv(FRACTION, "0.2")
    assert given("--gpu-memory-utilization", "0.5") == ("0.2", None)
    environment.delenv(FRACTION)
    environment.setenv("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")
    assert given() == (None, None)


def test_the_share_is_of_the_device(caplog: pytest.LogCaptureFixture) -> None:
    """JAX with nine tenths of a device of 100 GiB, of which 10 are weights."""
    device = DeviceMemory(90 * GIB, 10 * GIB, total=100 * GIB)
    size = pool(device, gpu_memory_utilization=0.9)
    left = 80 * GIB // LAYOUT.bytes_per_page
    assert 0.8 * left < size.num_pages <= left
    half = pool(device, gpu_memory_utilization=0.5)
    left = 40 * GIB // LAYOUT.bytes_per_page
    assert 0.8 * left < half.num_pages <= left
    assert not caplog.records


def test_what_jax_was_not_given_is_said_with_both_numbers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    device = DeviceMemory(75 * GIB, 10 * GIB, total=100 * GIB)
    with caplog.at_level(logging.WARNING):
        size = pool(device, gpu_memory_utilization=0.9)
    assert size.num_pages <= 65 * GIB // LAYOUT.bytes_per_page
    (record,) = caplog.records
    for words in ("100.000 GiB is 90.000 GiB", "started with 75.000 GiB", f"{FRACTION}=0.9"):
        assert words in record.getMessage()
    full = DeviceMemory(75 * GIB, 75 * GIB, total=100 * GIB)
    with pytest.raises(ValueError, match=r"75.000 GiB of 100.000 GiB that JAX was started with"):
        pool(full)


def tiny(folder: Path) -> LLM:
    return LLM(
        tiny_models.write_hf(folder, tiny_models.tensors()),
        skip_tokenizer_init=True,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        num_gpu_blocks_override=30,
        enforce_eager=True,
        compilation_cache_dir="",
    )


def device_bytes() -> int:
    return sum(array.nbytes for array in jax.live_arrays())


def test_a_closed_llm_holds_no_device_memory(tmp_path: Path) -> None:
    """Also while it is still referred to, and with a step in flight."""
    before = device_bytes()
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logprobs=1)
    with tiny(tmp_path) as llm:
        (whole,) = llm.generate([[5, 6, 7]], params, use_tqdm=False)
        assert len(whole.outputs[0].token_ids) == 5
        held = device_bytes()
        stream = llm.stream([5, 6, 7], params)
        next(stream)
    assert held > before
    assert device_bytes() <= before
    for use in (
        lambda: llm.generate([[5]], params, use_tqdm=False),
        lambda: next(stream),
        lambda: next(llm.stream([5], params)),
        llm.stats,
        llm.reset_prefix_cache,
    ):
        with pytest.raises(RuntimeError, match="this LLM is closed"):
            use()
    stream.close()
    llm.close()  # again
    assert whole.outputs[0].token_ids  # what it said stays
