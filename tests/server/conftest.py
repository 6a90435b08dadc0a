"""Settings of the server's tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.browser import start_chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium; skips the test where there is none."""
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="the page's test needs: pip install 'paxkv[browser]'"
    )
    with sync_api.sync_playwright() as playwright:
        browser = start_chromium(playwright)
        yield browser
        browser.close()
