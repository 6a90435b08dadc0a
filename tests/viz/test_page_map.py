"""The page map against a look at the block manager page by page."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest
from rich.console import Console

from paxkv.memory import BlockManager
from paxkv.viz import page_map
from paxkv.viz.page_states import CACHED, FREE, OWNED, SHARED

SVG = "{http://www.w3.org/2000/svg}"


def filled_pool() -> BlockManager:
    """Rows 0 and 1 share two full blocks and a tail, row 2 is its own, row 3 has ended."""
    memory = BlockManager(12, 4, max_rows=8)
    first = memory.allocate(list(range(10)))
    memory.cache_blocks(first.row, list(range(10)), 10)
    memory.fork(first.row, 1)
    memory.allocate([50] * 5, cache_blocks=False)
    ended = memory.allocate([60] * 4)
    memory.cache_blocks(ended.row, [60] * 4, 4)
    memory.free(ended.row)
    return memory


def test_every_page_has_the_state_the_manager_says():
    memory = filled_pool()
    states = page_map(memory).states
    snapshot = memory.snapshot()
    cached = {page for page, _ in snapshot.index}
    for page in range(1, 13):
        holders = [row for row, _, pages, _ in snapshot.rows if page in pages]
        expected = {0: CACHED if page in cached else FREE, 1: OWNED}.get(len(holders), SHARED)
        assert states.state[page - 1] == expected
        assert states.owner[page - 1] == (min(holders) if holders else -1)
    assert states.counts() == {"free": 6, "cached": 1, "owned": 2, "shared": 3}
    assert memory.snapshot() == snapshot


def test_sentences():
    states = page_map(filled_pool()).states
    assert [states.describe(page) for page in (1, 3, 5, 6, 7)] == [
        "page 1: row 0, block 0, 4/4 filled, 2 references, cached",
        "page 3: row 0, block 2, 2/4 filled, 2 references",
        "page 5: row 2, block 1, 1/4 filled",
        "page 6: cached, free to be evicted",
        "page 7: free",
    ]


def test_text():
    lines = page_map(filled_pool()).text().splitlines()
    assert lines[0] == "12 pages of 4 tokens: 3 shared, 2 owned, 1 cached, 6 free"
    assert lines[1].strip() == "1 ███bb░······"
    assert lines[3:] == ["a row 0: 3 pages", "b row 2: 2 pages"]


@pytest.mark.parametrize("width", [20, 80, 200])
def test_text_keeps_to_the_terminal(width):
    memory = BlockManager(1000, 16, max_rows=8)
    memory.allocate([1] * 6000)
    console = Console(width=width, file=None, record=True, force_terminal=False)
    with console.capture() as capture:
        console.print(page_map(memory))
    pairs = [line.split() for line in capture.get().splitlines()]
    map_lines = [" ".join(pair) for pair in pairs if len(pair) == 2 and pair[0].isdigit()]
    assert max(map(len, map_lines)) <= width
    assert sum(line.count("a") for line in map_lines) == 375
    assert sum(line.count("·") for line in map_lines) == 625


def test_drawing_has_a_cell_a_page_with_its_sentence():
    shown = page_map(filled_pool())
    drawing = ElementTree.fromstring(shown.svg())
    titles = [title.text for title in drawing.iter(f"{SVG}title")]
    assert titles == [shown.states.describe(page) for page in range(1, 13)]
    fills = [rect.get("fill") for rect in drawing.iter(f"{SVG}rect")]
    assert len(set(fills[:3])) == 1
    assert len({fills[0], fills[3], fills[5], fills[6]}) == 4
    assert [letter.text for letter in drawing.iter(f"{SVG}text")] == ["b", "b"]


def test_a_large_pool_is_grouped_and_hides_no_used_page():
    memory = BlockManager(100_000, 16, max_rows=700, max_blocks_per_row=100)
    for index in range(600):
        memory.allocate([index] * 16)
    memory.cache_blocks(300, [300] * 16, 16)
    for row in range(1, 600):
        memory.free(row)
    memory.allocate([1] * 300, cache_blocks=False)
    shown = page_map(memory)
    text = shown.text()
    assert "a cell is 25 pages" in text
    assert text.count("░") == 2  # the cell that holds the cached page, and the legend
    assert text.splitlines()[1].lstrip().startswith("1 a")
    assert len(text) < 10_000
    html = shown._repr_html_()
    assert len(html) < 1_000_000
    assert "pages 1 to 25, as page 1: row 0" in html


def test_an_engine_names_its_requests():
    memory = filled_pool()
    request = SimpleNamespace(request_id="<7>", sequences=[0, 1])
    running = [SimpleNamespace(row=row, index=row, request=request) for row in (0, 1)]
    running.append(
        SimpleNamespace(row=2, index=0, request=SimpleNamespace(request_id="9", sequences=[0]))
    )
    engine = SimpleNamespace(block_manager=memory, scheduler=SimpleNamespace(running=running))
    shown = page_map(SimpleNamespace(engine=engine))
    assert "a request <7>, sequence 0: 3 pages" in shown.text()
    assert "b request 9: 2 pages" in shown.text()
    assert "request &lt;7&gt;, sequence 0" in shown._repr_html_()
    assert "<7>" not in shown._repr_html_()


def test_something_without_pages_is_refused():
    with pytest.raises(ValueError, match="a list has no block manager"):
        page_map([])


def test_the_manager_is_a_table_in_a_notebook():
    memory = filled_pool()
    table = ElementTree.fromstring(memory._repr_html_())
    headings = [cell.text for cell in table.iter("th")]
    assert headings == ["row", "logical block", "physical block", "filled", "references"]
    lines = [[cell.text for cell in line] for line in table.find("table/tbody")]
    assert lines[2] == ["0", "2", "3", "2/4", "2"]
    assert len(lines) == 8
    assert str(memory).splitlines()[1].split("  ")[1].strip() == "logical block"


def test_long_tables_say_what_is_left_out():
    memory = BlockManager(1000, 1, max_rows=8)
    memory.allocate([1] * 205)
    assert str(memory).splitlines()[-1] == "… and 5 more"
    assert len(str(memory).splitlines()) == 203
    assert "… and 5 more" in memory._repr_html_()
