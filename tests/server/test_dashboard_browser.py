"""The page in a headless browser: pixels, keys, streams. Skipped where no browser is installed."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from paxkv.server.settings import ServerSettings
from tests.server.browser import Window, url, window
from tests.server.full_pool import full_pool
from tests.server.test_dashboard import naive_pool, numbers_of
from tests.server.tiny_server import TinyServer, chat, serving

KEY = "browser-key-123"
# Okabe and Ito's, as the page has them.
COLOURS = ("0072b2", "e69f00", "009e73", "d55e00", "cc79a7", "56b4e9", "f0e442")
LIGHT = {"free": "eceef2", "cached": "a3abb8", "ink": "16181d"}
DARK = {"free": "23272f", "cached": "697282", "ink": "eef0f4"}
DARKENED = 0.4


def rgb(text: str) -> np.ndarray:
    return np.array([int(text[at : at + 2], 16) for at in (0, 2, 4)])


def is_colour(pixel: np.ndarray, colour: np.ndarray) -> bool:
    return bool(np.abs(pixel[:3].astype(int) - colour).max() <= 2)


def corner_colours(page: tuple[int, bool, bool], theme: dict[str, str]) -> list[np.ndarray]:
    """What the first pixel of a page's tile may be: a frame, a colour, or its pattern's mark."""
    owner, shared, cached = page
    if owner < 0:
        return [rgb(theme["cached" if cached else "free"])]
    if shared:
        return [rgb(theme["ink"])]
    colour = rgb(COLOURS[owner % len(COLOURS)])
    return [colour * DARKENED] if owner % 4 else [colour]


def check_map(opened: Window, pages: list[tuple[int, bool, bool]], theme: dict[str, str]) -> None:
    """Every page of the map in a screenshot."""
    picture = opened.picture()
    box = opened.page.locator("#map").bounding_box()
    columns, size = opened.page.evaluate(
        "() => { const c = document.getElementById('map'); "
        "const n = Math.floor(c.parentElement.clientWidth / 24); return [n, c.width / n]; }"
    )
    assert size == int(size)
    wrong = []
    for place, page in enumerate(pages):
        x = round(box["x"]) + place % columns * int(size)
        y = round(box["y"]) + place // columns * int(size)
        if not any(is_colour(picture[y, x], colour) for colour in corner_colours(page, theme)):
            wrong.append((place + 1, page, picture[y, x].tolist()))
    assert wrong == []


def test_the_map_shows_every_page(server: TinyServer, browser: Any) -> None:
    """In light colours, and in dark ones when the system changes over."""
    with (
        full_pool(server.model, 400, 24) as memory,
        window(browser, url(server), color_scheme="light") as opened,
    ):
        opened.wait_for("document.querySelectorAll('#queue tr').length > 10")
        pages = naive_pool(memory, numbers_of(server))
        assert len({(owner >= 0, shared, cached) for owner, shared, cached in pages}) > 3
        check_map(opened, pages, LIGHT)
        opened.page.emulate_media(color_scheme="dark")
        opened.page.wait_for_timeout(300)
        check_map(opened, pages, DARK)
        summary = opened.page.inner_text("#map-summary")
        stats = memory.stats()
        assert f"400 pages of 4 tokens: {stats.used_blocks} in use" in summary
        assert f"{stats.shared_blocks} shared" in summary
        assert opened.complaints == []


def test_a_request_is_chosen_by_mouse_and_by_keyboard(server: TinyServer, browser: Any) -> None:
    with full_pool(server.model, 400, 24) as memory, window(browser, url(server)) as opened:
        page = opened.page
        opened.wait_for("document.querySelectorAll('#queue tr').length > 10")
        (third,) = [s for s in server.model.engine.scheduler.running if s.request.arrival == 3]
        pages = memory.row_pages(third.row)
        own = [int(p) for p in pages if memory.references[p] == 1]

        def table() -> list[int]:
            return [int(text.split()[-1]) for text in page.locator("#table li").all_inner_texts()]

        def wait_for_table(words: str) -> None:
            opened.wait_for(
                f"document.getElementById('table-note').textContent.includes('{words}')"
            )

        columns = page.evaluate(
            "Math.floor(document.getElementById('map').parentElement.clientWidth / 24)"
        )
        place = own[0] - 1
        position = {"x": place % columns * 24 + 10, "y": place // columns * 24 + 10}
        page.locator("#map").click(position=position)
        wait_for_table("Request 3:")
        assert table() == pages.tolist()
        assert page.inner_text("#map-page").startswith(f"page {own[0]}: request 3")
        thick = page.locator("#table li.shared").count()
        assert thick == np.count_nonzero(memory.references[pages] > 1)
        assert page.locator("#queue tr.chosen button").inner_text() == "3"

        page.keyboard.press("Escape")
        wait_for_table("Choose a request")
        assert table() == []

        page.keyboard.press("Home")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        opened.wait_for(
            f"document.getElementById('map-page').textContent.startsWith('page {columns + 2}:')"
        )
        page.keyboard.press("Home")
        page.keyboard.press("Enter")
        first = naive_pool(memory, numbers_of(server))[0][0]
        wait_for_table(f"Request {first}:")

        page.locator("#queue button").nth(2).focus()
        name = page.locator("#queue button").nth(2).inner_text()
        page.keyboard.press("Enter")
        wait_for_table(f"Request {name}:")
        assert opened.complaints == []


def test_everything_is_reached_with_the_tab_key(server: TinyServer, browser: Any) -> None:
    with full_pool(server.model, 600, 4), window(browser, url(server)) as opened:
        opened.wait_for("document.querySelectorAll('#queue button').length > 0")
        reached = []
        for _ in range(20):
            opened.page.keyboard.press("Tab")
            reached.append(
                opened.page.evaluate(
                    "document.activeElement.id || document.activeElement.ariaLabel"
                )
            )
        for wanted in ("map", "table", "chat-text", "chat-send", "queue-frame", "request 0"):
            assert wanted in reached
        unnamed = opened.page.evaluate(
            "[...document.querySelectorAll('button, input, textarea, canvas:not([aria-hidden])')]"
            ".filter((e) => !(e.ariaLabel || e.textContent.trim() || e.labels?.length"
            " || e.getAttribute('aria-labelledby'))).map((e) => e.id)"
        )
        assert unnamed == []


def test_a_chat_streams(server: TinyServer, browser: Any) -> None:
    answer = server.post(
        "/v1/chat/completions", {**chat("hello there", max_tokens=40), "ignore_eos": False}
    ).json()["choices"][0]["message"]["content"]
    assert len(answer) > 10
    server.model.engine.runner.hooks.before_launch = lambda plan: time.sleep(0.08)
    with window(browser, url(server)) as opened:
        page = opened.page
        opened.wait_for("!document.getElementById('app').hidden")
        page.fill("#chat-tokens", "40")
        page.fill("#chat-heat", "0")
        page.fill("#chat-text", "hello there")
        page.keyboard.press("Enter")
        last = "document.querySelector('#chat-log div:last-child').textContent"
        opened.wait_for(
            f"document.querySelectorAll('#chat-log div').length === 2 && {last}.length > 2"
        )
        begun = page.evaluate(last)
        assert len(begun) < len(answer)
        opened.wait_for("document.querySelectorAll('#queue tr').length === 1")
        assert page.locator("#queue td").nth(1).inner_text() == "running"
        opened.wait_for("document.getElementById('chat-stop').hidden")
        assert page.evaluate(last) == answer
        opened.wait_for("document.querySelectorAll('#queue tr').length === 0")
        opened.wait_for("parseFloat(document.getElementById('rate-now').textContent) >= 0")
        assert page.inner_text("#first-now") != "–"

        page.fill("#chat-text", "and then?")
        page.click("#chat-send")
        opened.wait_for(
            f"document.querySelectorAll('#chat-log div').length === 4 && {last}.length > 2"
        )
        page.click("#chat-stop")
        opened.wait_for("document.getElementById('chat-stop').hidden")
        ends = "[...document.querySelectorAll('#chat-log [data-end]')].map((e) => e.dataset.end)"
        assert page.evaluate(ends) == ["cut at the limit of tokens", "stopped"]
        server.wait_idle()
        assert page.inner_text("#chat-error") == ""
        assert opened.complaints == []
    server.model.engine.runner.hooks.before_launch = None


def test_what_the_server_refuses_is_said(server: TinyServer, browser: Any) -> None:
    """And the message returns to the box, to be mended."""
    with window(browser, url(server)) as opened:
        assert "Enter" in opened.page.get_attribute("#chat-text", "placeholder")
        opened.wait_for("!document.getElementById('app').hidden")
        opened.page.fill("#chat-text", "word " * 2000)
        opened.page.click("#chat-send")
        opened.wait_for(
            "document.getElementById('chat-error').textContent.includes('maximum context length')"
        )
        assert opened.page.locator("#chat-stop").is_hidden()
        assert opened.page.input_value("#chat-text") == "word " * 2000
        assert opened.page.locator("#chat-log div").count() == 0


def test_the_key_is_asked_for(browser: Any) -> None:
    settings = ServerSettings(api_key=[KEY], served_model_name=["secret-model-name"])
    with serving(settings=settings) as server, window(browser, url(server)) as opened:
        page = opened.page
        opened.wait_for("!document.getElementById('gate').hidden")
        assert page.locator("#app").is_hidden()
        assert "secret-model-name" not in page.content()
        assert page.locator("#figures div").count() == page.locator("#queue tr").count() == 0
        assert page.evaluate("document.activeElement.id") == "key"

        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        opened.wait_for(
            "document.getElementById('gate-error').textContent.includes('does not open')"
        )
        assert page.locator("#app").is_hidden()

        page.keyboard.type(KEY)
        page.keyboard.press("Enter")
        opened.wait_for("!document.getElementById('app').hidden")
        assert "secret-model-name" in page.inner_text("header")
        page.fill("#chat-text", "hi")
        page.click("#chat-send")
        opened.wait_for("document.getElementById('chat-stop').hidden")
        assert page.inner_text("#chat-error") == ""
        page.reload()
        opened.wait_for("!document.getElementById('app').hidden")
        page.click("#leave")
        opened.wait_for("!document.getElementById('gate').hidden")
        # The browser itself notes each 401.
        assert [c for c in opened.complaints if "401 (Unauthorized)" not in c] == []


def test_a_narrow_window(server: TinyServer, browser: Any) -> None:
    """Nothing is wider than the window, and the cursor can begin at either end."""
    small = {"width": 420, "height": 900}
    for pages in (1000, 100_000):
        with full_pool(server.model, pages, 24), window(browser, url(server), viewport=small) as o:
            o.wait_for("document.querySelectorAll('#queue tr').length > 10")
            o.page.focus("#map")
            o.page.keyboard.press("End")
            o.wait_for(
                "document.getElementById('map-page').textContent.startsWith('page " + f"{pages}:')"
            )
            wide = o.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= small["width"]
            assert o.page.locator("#lens").is_visible() == (pages > 1000)
            assert o.complaints == []


def test_a_hundred_thousand_pages(server: TinyServer, browser: Any) -> None:
    with full_pool(server.model, 100_000, 200) as memory, window(browser, url(server)) as opened:
        page = opened.page
        opened.wait_for("document.querySelectorAll('#queue tr').length > 100")
        asked: list[float] = []
        page.on("request", lambda request: asked.append(time.monotonic()))
        assert page.locator("#lens").is_visible()
        width, height = page.evaluate(
            "() => { const c = document.getElementById('map'); return [c.width, c.height]; }"
        )
        assert width * height >= 100_000
        assert height <= 600
        milliseconds = page.evaluate(
            "() => { const c = document.getElementById('map'); const start = performance.now();"
            "c.dispatchEvent(new KeyboardEvent('keydown', {key: 'Home'}));"
            "return performance.now() - start; }"
        )
        assert milliseconds < 1000
        page.focus("#map")
        page.keyboard.press("End")
        opened.wait_for("document.getElementById('map-page').textContent === 'page 100000: free'")
        page.locator("#queue button").nth(90).click()
        opened.wait_for("document.querySelectorAll('#table li').length > 300")
        (number,) = [int(page.locator("#queue tr.chosen button").inner_text())]
        (sequence,) = [
            s for s in server.model.engine.scheduler.running if s.request.arrival == number
        ]
        shown = [int(text.split()[-1]) for text in page.locator("#table li").all_inner_texts()]
        assert shown == memory.row_pages(sequence.row).tolist()
        page.wait_for_timeout(2000)
        now = time.monotonic()
        assert 1 <= sum(now - 2 < moment for moment in asked) <= 5
        assert opened.complaints == []
