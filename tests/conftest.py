"""Settings shared by all tests."""

from __future__ import annotations

from pathlib import Path

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
