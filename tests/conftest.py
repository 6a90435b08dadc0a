"""Settings shared by all tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Derandomised: a run that fails must fail again. No deadline: the first example may compile.
settings.register_profile(
    "paxkv", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("paxkv")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The stored reference data."""
    return Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def smollm() -> Any:
    """The real model behind a whole engine; skips the test where it cannot be fetched."""
    from convert.pull import PullError, resolve
    from paxkv import LLM

    try:
        path = resolve("smollm2-135m", progress=False)
    except PullError as error:
        pytest.skip(str(error))
    return LLM(
        path,
        dtype="float32",
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=512,
        num_gpu_blocks_override=127,
        enforce_eager=True,
    )


@pytest.fixture(scope="session")
def tiny_server() -> Any:
    """A running server over the tiny random model, for tests that leave nothing behind."""
    from tests.server.tiny_server import serving

    with serving() as server:
        yield server


@pytest.fixture
def server(tiny_server: Any) -> Any:
    """The running server, idle before and after the test."""
    yield tiny_server
    tiny_server.wait_idle()
