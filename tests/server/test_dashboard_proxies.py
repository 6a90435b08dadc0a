"""The page in a browser, behind proxies and over connections that fail."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from paxkv.server.settings import ServerSettings
from tests.server.browser import Window, window
from tests.server.prefix_proxy import PREFIX, prefix_proxy
from tests.server.tiny_server import TinyServer, chat, serving

LIVE = "document.getElementById('status').textContent === 'live'"
SHOWN = "!document.getElementById('app').hidden"
IS_OLD = "getComputedStyle(document.getElementById('figures')).opacity < 0.7"


def says(words: str) -> str:
    return f"document.getElementById('status').textContent.includes('{words}')"


def send(opened: Window, text: str) -> None:
    opened.page.fill("#chat-tokens", "8")
    opened.page.fill("#chat-text", text)
    opened.page.click("#chat-send")


@pytest.mark.parametrize(
    ("strip", "root_path", "slash"),
    [(True, "", "/"), (True, PREFIX, "/"), (True, PREFIX, ""), (False, PREFIX, "")],
)
def test_below_a_prefix(browser: Any, strip: bool, root_path: str, slash: str) -> None:
    """Pins: files, state and chat asked for outside of the prefix."""
    settings = ServerSettings(root_path=root_path)
    with serving(settings=settings) as server, prefix_proxy(server.port, strip=strip) as proxy:
        with window(browser, proxy.url.rstrip("/") + slash) as opened:
            opened.wait_for(SHOWN)
            opened.wait_for(LIVE)
            send(opened, "hello")
            opened.wait_for("document.querySelector('#chat-log [data-end]')")
            assert opened.page.inner_text("#chat-error") == ""
            assert opened.complaints == []
        assert proxy.outside == []


def test_a_page_without_its_files_says_so(server: TinyServer, browser: Any) -> None:
    """Pins: a blank page, where the address lacks the slash that relative links need."""
    with prefix_proxy(server.port, strip=True) as proxy:
        with window(browser, proxy.url.rstrip("/")) as opened:
            assert opened.page.locator("#app").is_hidden()
            assert "slash at the end" in opened.page.inner_text("body")
        assert proxy.outside


def test_a_proxy_that_signs_people_in(server: TinyServer, browser: Any) -> None:
    """Pins: requests without the proxy's cookie, and its sign-in page taken for an answer."""
    with (
        prefix_proxy(server.port, strip=True, signed_in=True) as proxy,
        window(browser, proxy.url) as opened,
    ):
        opened.wait_for(SHOWN)
        opened.wait_for(LIVE)
        opened.page.context.clear_cookies()
        opened.wait_for(says("reload the page"))
        opened.page.reload()
        opened.wait_for(SHOWN)
        opened.wait_for(LIVE)
        assert proxy.outside == []


def test_no_connection(server: TinyServer, browser: Any) -> None:
    """Pins: figures of then that look like those of now, and a lost message."""
    with prefix_proxy(server.port, strip=True) as proxy, window(browser, proxy.url) as opened:
        opened.wait_for(SHOWN)
        assert not opened.page.evaluate(IS_OLD)
        opened.page.context.set_offline(True)
        opened.wait_for(says("no connection; figures of "))
        opened.wait_for(IS_OLD)
        send(opened, "are you there?")
        opened.wait_for("document.getElementById('chat-error').textContent === 'no connection'")
        assert opened.page.input_value("#chat-text") == "are you there?"
        opened.page.context.set_offline(False)
        opened.wait_for(LIVE)
        assert not opened.page.evaluate(IS_OLD)


def test_a_connection_that_hangs(server: TinyServer, browser: Any) -> None:
    """Pins: a request without an end, after which nothing is asked any more and all looks live."""
    with prefix_proxy(server.port, strip=True) as proxy, window(browser, proxy.url) as opened:
        opened.page.clock.install()
        opened.page.reload()
        opened.wait_for(SHOWN)
        proxy.holding.clear()
        opened.page.wait_for_timeout(800)
        opened.page.clock.fast_forward(10_000)
        opened.wait_for(says("no answer; figures of "))
        proxy.holding.set()
        opened.page.clock.fast_forward(3000)
        opened.wait_for(LIVE)


def test_a_stream_that_is_cut(server: TinyServer, browser: Any) -> None:
    """Pins: half an answer that looks whole; it ends as a whole one does, but without [DONE]."""
    length = len(server.post("/v1/chat/completions", chat("hello", stream=True)).content)
    with prefix_proxy(server.port, strip=True) as proxy, window(browser, proxy.url) as opened:
        opened.wait_for(SHOWN)
        proxy.cut = length // 2
        send(opened, "hello")
        opened.wait_for("document.querySelector('#chat-log [data-end=\"broken off\"]')")
        assert "ended before the answer" in opened.page.inner_text("#chat-error")
    server.wait_idle()


def test_a_server_that_starts_anew(browser: Any) -> None:
    """Pins: a rate below zero, and times of the server before."""
    with prefix_proxy(0, strip=True) as proxy:
        with serving() as first:
            proxy.target = first.port
            first.post("/v1/chat/completions", chat(max_tokens=40))
            context = window(browser, proxy.url)
            opened = context.__enter__()
            opened.wait_for(SHOWN)
            opened.wait_for("document.getElementById('first-now').textContent !== '–'")
            opened.page.evaluate(
                "() => { window.rates = []; const place = document.getElementById('rate-now');"
                "new MutationObserver(() => rates.push(parseFloat(place.textContent)))"
                ".observe(place, {childList: true}); }"
            )
            opened.wait_for("rates.length > 1")
        try:
            with serving() as second:
                proxy.target = second.port
                opened.wait_for(LIVE)
                opened.wait_for("document.getElementById('first-now').textContent === '–'")
                opened.wait_for("rates.length > 5")
                assert min(opened.page.evaluate("rates")) >= 0
        finally:
            context.__exit__(None, None, None)


def test_a_step_that_takes_long(server: TinyServer, browser: Any) -> None:
    """Pins: figures of before a long step (a compilation) that look like those of now."""
    with window(browser, f"http://127.0.0.1:{server.port}/") as opened:
        opened.wait_for(SHOWN)
        gate = threading.Event()
        server.model.engine.runner.hooks.before_launch = lambda plan: gate.wait(20)
        thread = threading.Thread(target=lambda: server.post("/v1/chat/completions", chat()))
        thread.start()
        try:
            opened.wait_for(says("a step takes long"))
            opened.wait_for(IS_OLD)
        finally:
            server.model.engine.runner.hooks.before_launch = None
            gate.set()
            thread.join()
        start = time.monotonic()
        opened.wait_for(LIVE)
        assert not opened.page.evaluate(IS_OLD)
        assert time.monotonic() - start < 5
