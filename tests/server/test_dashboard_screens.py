"""The page on screens of several sizes: what is seen, where and how large."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.server.browser import Window, url, window
from tests.server.full_pool import full_pool
from tests.server.test_dashboard_browser import COLOURS, rgb
from tests.server.tiny_server import TinyServer, completion, serving

LAPTOP = {"viewport": {"width": 1400, "height": 900}}
PHONE = {
    "viewport": {"width": 420, "height": 800},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}
ROWS = "document.querySelectorAll('#queue tr').length > 10"
SWATCHES = """[...document.querySelectorAll('#legend canvas, #queue canvas')].map(
    (c) => [c.getBoundingClientRect().width, c.getBoundingClientRect().height, c.width])"""
# Of everything that can be seen, what is cut off by the window's sides.
CUT = """[...document.querySelectorAll('#app *')].filter((e) => {
    const box = e.getBoundingClientRect();
    return box.width && (box.left < 0 || box.right > innerWidth + 0.5)
        && !e.closest('#table, #queue-frame, #chat-log');
}).map((e) => e.tagName + '#' + e.id)"""


def top(opened: Window, selector: str) -> float:
    return float(opened.page.locator(selector).first.bounding_box()["y"])


def bottom(opened: Window, selector: str) -> float:
    box = opened.page.locator(selector).first.bounding_box()
    return float(box["y"] + box["height"])


@pytest.mark.parametrize("options", [LAPTOP, {**LAPTOP, "device_scale_factor": 2}, PHONE])
def test_a_swatch_has_one_size(server: TinyServer, browser: Any, options: dict[str, Any]) -> None:
    """Pins: sizes in device pixels taken for CSS pixels, which push a phone's page sideways."""
    ratio = options.get("device_scale_factor", 1)
    with full_pool(server.model, 400, 24), window(browser, url(server), **options) as opened:
        opened.wait_for(ROWS)
        assert {tuple(size) for size in opened.page.evaluate(SWATCHES)} == {(16, 16, 16 * ratio)}
        width = options["viewport"]["width"]
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        assert opened.page.evaluate(CUT) == []


def test_a_window_that_moves_to_another_screen(server: TinyServer, browser: Any) -> None:
    """Pins: drawings of the screen where the page was opened."""
    with full_pool(server.model, 400, 24), window(browser, url(server), **LAPTOP) as opened:
        opened.wait_for(ROWS)
        session = opened.page.context.new_cdp_session(opened.page)
        session.send(
            "Emulation.setDeviceMetricsOverride",
            {"width": 1400, "height": 900, "deviceScaleFactor": 2, "mobile": False},
        )
        opened.wait_for(f"({SWATCHES}).every(([w, h, pixels]) => w === 16 && pixels === 32)")
        opened.wait_for(
            "(() => { const c = document.getElementById('map');"
            "return Math.abs(c.width - 2 * c.clientWidth) <= 1; })()"
        )


def test_the_block_table_is_where_one_looks(server: TinyServer, browser: Any) -> None:
    """Pins: an answer to a click that is below the fold."""
    with full_pool(server.model, 400, 24), window(browser, url(server), **LAPTOP) as opened:
        opened.wait_for(ROWS)
        opened.page.locator("#queue tr").nth(3).click()
        opened.wait_for("document.querySelectorAll('#table li').length > 5")
        assert opened.page.evaluate("scrollY") == 0
        for part in ("#map", "#table", "#queue-frame", "#chat-send", "#rate", "#first", "#usage"):
            assert bottom(opened, part) <= 900, part
        map_box = opened.page.locator("#map-part").bounding_box()
        table_box = opened.page.locator("#table").bounding_box()
        assert table_box["x"] >= map_box["x"] + map_box["width"]


def test_a_row_is_chosen_anywhere(server: TinyServer, browser: Any) -> None:
    """And its blocks wear its colour. Pins: a small target, and colours that mean nothing."""
    with full_pool(server.model, 400, 24), window(browser, url(server), **LAPTOP) as opened:
        opened.wait_for(ROWS)
        for row in (2, 5):
            number = int(opened.page.locator("#queue button").nth(row).inner_text())
            opened.page.locator("#queue tr").nth(row).locator("td").nth(1 + row % 4).click()
            opened.wait_for(
                f"document.getElementById('table-note').textContent.includes('{number}:')"
            )
            shown = opened.page.evaluate(
                "[...document.querySelectorAll('#table li')].map("
                "(e) => getComputedStyle(e).borderLeftColor)"
            )
            red, green, blue = rgb(COLOURS[number % len(COLOURS)])
            assert set(shown) == {f"rgb({red}, {green}, {blue})"}
        opened.page.locator("#queue tr").nth(5).locator("td").nth(3).click()
        opened.wait_for("document.querySelectorAll('#table li').length === 0")
        assert opened.complaints == []


def test_a_chosen_request_has_its_colour_on_shared_pages(server: TinyServer, browser: Any) -> None:
    """Pins: its blocks in the table and its pages in the map in two colours."""
    with full_pool(server.model, 400, 24) as memory, window(browser, url(server), **LAPTOP) as o:
        o.wait_for(ROWS)
        running = server.model.engine.scheduler.running
        sequence = next(s for s in running if s.request.arrival == 8)
        page = int(memory.row_pages(sequence.row)[0])
        assert memory.references[page] > 1  # request 7 is its first owner
        o.page.locator("#queue button[aria-label='request 8']").click()
        o.wait_for("document.querySelectorAll('#table li').length > 5")
        pixel = o.page.evaluate(
            """(page) => {
                const c = document.getElementById('map');
                const columns = Math.floor(c.parentElement.clientWidth / 24);
                const x = ((page - 1) % columns) * 24 + 11;
                const y = Math.floor((page - 1) / columns) * 24 + 11;
                return [...c.getContext('2d').getImageData(x, y, 1, 1).data.slice(0, 3)];
            }""",
            page,
        )
        assert pixel == rgb(COLOURS[8 % len(COLOURS)]).tolist()


def test_figures_have_units(server: TinyServer, browser: Any) -> None:
    """Pins: bare numbers; and a page on which one cannot read how fast it goes."""
    with window(browser, url(server), **LAPTOP) as opened:
        opened.wait_for("document.querySelectorAll('#figures dd').length > 7")
        server.post("/v1/completions", completion())
        opened.wait_for("document.querySelector('#figures dd').textContent[0] !== '–'")
        units = opened.page.locator("#figures dd small").all_inner_texts()
        assert "tokens/s" in units
        assert all(units)
        assert opened.page.inner_text("#rate-now").endswith(" tokens/s")


def test_the_first_token_headline_is_of_its_chart(browser: Any) -> None:
    """Pins: a headline of requests that the chart does not show, as when the page is new."""
    dots = """() => { const c = document.getElementById('first');
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0;
        for (let i = 0; i < d.length; i += 4) n += d[i + 2] > 150 && d[i] < 30 && d[i + 3] > 200;
        return n; }"""
    with serving() as server:
        with window(browser, url(server), **LAPTOP, color_scheme="light") as opened:
            opened.wait_for("document.getElementById('first-now').textContent === '–'")
            assert opened.page.evaluate(dots) == 0
        for _ in range(5):
            server.post("/v1/completions", completion(max_tokens=2))
        took = sorted(s for _, s in server.get("/page/state").json()["traffic"]["first_tokens"])
        with window(browser, url(server), **LAPTOP, color_scheme="light") as opened:
            opened.wait_for("document.getElementById('first-now').textContent.startsWith('p50')")
            words = opened.page.inner_text("#first-now").split(", ")
            for text, share in zip(words, (0.5, 0.95), strict=True):
                _, value, unit = text.split()
                seconds = float(value) / (1000 if unit == "ms" else 1)
                assert math.isclose(seconds, took[math.ceil(share * 5) - 1], rel_tol=0.01)
            assert opened.page.evaluate(dots) > 5


def test_a_phone_begins_with_the_chat(server: TinyServer, browser: Any) -> None:
    """Pins: the order of a wide window, and inputs that Safari zooms into and stays there."""
    with full_pool(server.model, 400, 24), window(browser, url(server), **PHONE) as opened:
        opened.wait_for(ROWS)
        parts = ["#chat-part", "#figures", "#requests-part", "#table", "#map-part", "#charts"]
        tops = [top(opened, part) for part in parts]
        assert tops == sorted(tops)
        assert bottom(opened, "#chat-send") < 800
        assert bottom(opened, "header") < 120
        sizes = opened.page.evaluate(
            "[...document.querySelectorAll('input, textarea')]"
            ".map((e) => parseFloat(getComputedStyle(e).fontSize))"
        )
        assert min(sizes) >= 16
        assert opened.complaints == []
