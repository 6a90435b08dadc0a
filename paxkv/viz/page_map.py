"""Map of the page pool: owned, shared, cached and free pages."""

from __future__ import annotations

import string
from html import escape
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from paxkv.viz.page_states import (
    CACHED,
    FREE,
    OWNED,
    SHARED,
    STATES,
    PageStates,
    memory_of,
    row_names,
)

# Okabe and Ito's colors, told apart with every kind of color vision; black marks sharing.
OWNER_COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442")
FREE_COLOR, CACHED_COLOR, SHARED_COLOR = "#FFFFFF", "#BBBBBB", "#000000"
OWNER_GLYPHS = string.ascii_lowercase + string.digits + string.ascii_uppercase
GLYPHS = {FREE: "·", CACHED: "░", SHARED: "█"}
MOST_CELLS = 4096
MOST_OWNERS = 24
NARROWEST = 20


class PageMap:
    """A picture of the pool at the moment it was made.

    Printed in a terminal it is text, in a notebook an SVG drawing whose cells say on hovering
    what they are. Large pools show several pages a cell: a cell has the state most of its pages
    have, but a used page is never hidden behind free ones.
    """

    def __init__(self, states: PageStates) -> None:
        self.states = states
        self._order = {row: place for place, row in enumerate(states.owners())}

    def __repr__(self) -> str:
        return self.text()

    def text(self, width: int = 80) -> str:
        """Plain text, at most `width` characters a line where that is 20 or more."""
        return self._styled(max(width, NARROWEST)).plain

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._styled(max(options.max_width, NARROWEST))

    def _styled(self, width: int) -> Text:
        states = self.states
        label = len(str(states.num_pages)) + 1
        per_line = max(1, width - label)
        stride, cells = self._cells()
        text = Text(self._headline(stride) + "\n")
        for start in range(0, len(cells), per_line):
            text.append(f"{start * stride + 1:>{label - 1}} ")
            for page in cells[start : start + per_line].tolist():
                text.append(self._glyph(page), self._style(page))
            text.append("\n")
        text.append("· free  ░ cached  █ shared\n")
        owners = states.owners()
        held = np.bincount(states.owner[states.owner >= 0], minlength=max(owners, default=0) + 1)
        for place, row in enumerate(owners[:MOST_OWNERS]):
            text.append(OWNER_GLYPHS[place % len(OWNER_GLYPHS)], self._owner_color(row))
            text.append(f" {states.name(row)}: {held[row]} pages\n")
        if len(owners) > MOST_OWNERS:
            text.append(f"… and {len(owners) - MOST_OWNERS} more\n")
        text.right_crop()
        return text

    def _headline(self, stride: int) -> str:
        counts = self.states.counts()
        found = ", ".join(f"{counts[state]} {state}" for state in reversed(STATES))
        line = f"{self.states.num_pages} pages of {self.states.block_size} tokens: {found}"
        return line + (f"; a cell is {stride} pages" if stride > 1 else "")

    def _cells(self) -> tuple[int, np.ndarray]:
        """Pages a cell, and the page (from 1) that each cell shows."""
        count = self.states.num_pages
        stride = -(-count // MOST_CELLS)
        if stride == 1:
            return 1, np.arange(1, count + 1)
        padded = np.full(-(-count // stride) * stride, -1, np.int64)
        # Used pages come before cached ones and those before free ones; sharing is told by weight.
        padded[:count] = self.states.state
        groups = padded.reshape(-1, stride)
        per_state = np.stack([(groups == state).sum(axis=1) for state in range(len(STATES))])
        used = per_state[[OWNED, SHARED]]
        shown = np.where(
            used.any(axis=0),
            np.where(used[1] >= used[0], SHARED, OWNED),
            np.where(per_state[CACHED] > 0, CACHED, FREE),
        )
        first = (groups == shown[:, None]).argmax(axis=1)
        return stride, np.arange(len(groups)) * stride + first + 1

    def _glyph(self, page: int) -> str:
        state = int(self.states.state[page - 1])
        if state != OWNED:
            return GLYPHS[state]
        place = self._order.get(int(self.states.owner[page - 1]), 0)
        return OWNER_GLYPHS[place % len(OWNER_GLYPHS)]

    def _style(self, page: int) -> str:
        state = int(self.states.state[page - 1])
        return self._owner_color(int(self.states.owner[page - 1])) if state == OWNED else ""

    def _owner_color(self, row: int) -> str:
        return OWNER_COLORS[self._order.get(row, 0) % len(OWNER_COLORS)]

    def svg(self, columns: int = 64, cell: int = 12) -> str:
        """A drawing of `columns` cells a line, `cell` pixels wide; letters repeat the colors."""
        stride, cells = self._cells()
        height = -(-len(cells) // columns) * cell
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{columns * cell}" height="{height}" '
            f'font-family="monospace" font-size="{cell * 3 // 4}" text-anchor="middle" '
            'stroke="#888888" stroke-width="0.5">'
        ]
        for place, page in enumerate(cells.tolist()):
            x, y = place % columns * cell, place // columns * cell
            fill, ink = self._fill(page)
            title = escape(self._title(place * stride + 1, stride, page))
            parts.append(
                f'<g><title>{title}</title><rect x="{x}" y="{y}" width="{cell}" height="{cell}" '
                f'fill="{fill}"/>'
            )
            if ink:
                parts.append(
                    f'<text x="{x + cell / 2:g}" y="{y + cell * 0.75:g}" fill="{ink}" '
                    f'stroke="none">{self._glyph(page)}</text>'
                )
            parts.append("</g>")
        return "".join(parts) + "</svg>"

    def _fill(self, page: int) -> tuple[str, str]:
        """Colour of a cell and of the letter in it, "" for no letter."""
        state = int(self.states.state[page - 1])
        if state == OWNED:
            return self._owner_color(int(self.states.owner[page - 1])), "#000000"
        return {FREE: FREE_COLOR, CACHED: CACHED_COLOR, SHARED: SHARED_COLOR}[state], ""

    def _title(self, first: int, stride: int, page: int) -> str:
        text = self.states.describe(page)
        if stride == 1:
            return text
        return f"pages {first} to {min(first + stride - 1, self.states.num_pages)}, as {text}"

    def _repr_html_(self) -> str:
        stride, _ = self._cells()
        owners = self.states.owners()
        entries = [
            (FREE_COLOR, "free"),
            (CACHED_COLOR, "cached"),
            (SHARED_COLOR, "shared"),
            *((self._owner_color(row), self._legend(row)) for row in owners[:MOST_OWNERS]),
        ]
        legend = " ".join(
            f'<span style="white-space:nowrap"><span style="display:inline-block;width:1em;'
            f'height:1em;border:1px solid #888888;background:{color}"></span> '
            f"{escape(name)}</span>"
            for color, name in entries
        )
        more = len(owners) - MOST_OWNERS
        if more > 0:
            legend += f" … and {more} more"
        return f"<div><p>{escape(self._headline(stride))}</p>{self.svg()}<p>{legend}</p></div>"

    def _legend(self, row: int) -> str:
        return f"{OWNER_GLYPHS[self._order[row] % len(OWNER_GLYPHS)]}: {self.states.name(row)}"


def page_map(source: Any) -> PageMap:
    """The pages of an `LLM`, an engine or a `BlockManager` now.

    Raises:
        ValueError: `source` has no block manager.
    """
    return PageMap(PageStates.of(memory_of(source), row_names(source)))
