"""The real model, where it can be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from convert.pull import PullError, resolve


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct's GGUF file; skips the test where it cannot be fetched."""
    try:
        return resolve("smollm2-135m", progress=False)
    except PullError as error:
        pytest.skip(str(error))
