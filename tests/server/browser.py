"""A headless browser, where one is installed."""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

READ_PICTURE = """async (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const picture = await createImageBitmap(new Blob([bytes], {type: "image/png"}));
    const canvas = new OffscreenCanvas(picture.width, picture.height);
    const context = canvas.getContext("2d");
    context.drawImage(picture, 0, 0);
    const data = context.getImageData(0, 0, picture.width, picture.height).data;
    let binary = "";
    for (let i = 0; i < data.length; i += 4096)
        binary += String.fromCharCode(...data.subarray(i, i + 4096));
    return [picture.width, picture.height, btoa(binary)];
}"""


def start_chromium(playwright: Any) -> Any:
    """The machine's Chromium or Playwright's own; skips the test if there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    try:
        return playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
    except Exception as error:
        if found is not None:
            raise
        pytest.skip(f"no Chromium: apt install chromium, or playwright install ({error})")


class Window:
    """A page of a browser, and what it complained of."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")

    def picture(self) -> np.ndarray:
        """A screenshot as pixels `[height, width, 4]` uint8."""
        content = base64.b64encode(self.page.screenshot()).decode()
        blank = self.page.context.new_page()
        width, height, data = blank.evaluate(READ_PICTURE, content)
        blank.close()
        return np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4)

    def wait_for(self, condition: str, seconds: float = 15.0) -> None:
        """Until a JavaScript expression holds. Playwright's own wait is against the page's CSP."""
        until = time.monotonic() + seconds
        while not self.page.evaluate(condition):
            assert time.monotonic() < until, f"{condition} never came true; {self.complaints}"
            self.page.wait_for_timeout(30)


def url(server: Any) -> str:
    return f"http://127.0.0.1:{server.port}/"


@contextmanager
def window(browser: Any, url: str, **options: Any) -> Iterator[Window]:
    """A window of its own, without what another one stored."""
    defaults = {"viewport": {"width": 1440, "height": 1000}}
    context = browser.new_context(**{**defaults, **options})
    try:
        opened = Window(context.new_page())
        opened.page.goto(url)
        yield opened
    finally:
        context.close()
