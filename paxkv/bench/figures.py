"""Figures as tables, for a terminal and for Markdown."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from paxkv.output_file import OutputFile

BAR_WIDTH = 16
WIDE_TERMINAL = 100
# Okabe and Ito's colors, told apart with every kind of color vision.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#999999")


@dataclass(frozen=True)
class FigureTable:
    """A table of texts.

    columns: headings; the first column is aligned left, the others right.
    bar: heading of a column whose numbers are drawn as bars in a terminal.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    bar: str | None = None
    note: str = ""

    def print(self, console: Console) -> None:
        table = Table(title=self.title, title_justify="left")
        for place, heading in enumerate(self.columns):
            table.add_column(heading, justify="right" if place else "left")
        bars = self._bars() if console.width >= WIDE_TERMINAL else []
        if bars:
            table.add_column("")
        for place, row in enumerate(self.rows):
            table.add_row(*row, *bars[place : place + 1])
        console.print(table)
        if self.note:
            console.print(self.note, highlight=False)

    def markdown(self) -> str:
        lines = [f"### {self.title}", "", _line(self.columns)]
        lines.append(_line(["---", *["---:"] * (len(self.columns) - 1)]))
        lines += [_line(row) for row in self.rows]
        if self.note:
            lines += ["", self.note]
        return "\n".join(lines) + "\n"

    def _bars(self) -> list[str]:
        if self.bar is None:
            return []
        place = self.columns.index(self.bar)
        values = [_leading_number(row[place]) for row in self.rows]
        most = max(values, default=0.0) or 1.0
        return ["█" * max(round(BAR_WIDTH * value / most), value > 0) for value in values]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _leading_number(text: str) -> float:
    return float(text.split()[0].replace(",", "").rstrip("%×"))


def write_picture(file: OutputFile, figure: Any) -> None:
    """Write a figure of matplotlib's in the format that the suffix names, the same bytes again
    for the same figure."""
    content = io.BytesIO()
    dated = {"Date": None} if file.suffix.lower() == ".svg" else None
    try:
        figure.savefig(content, format=file.suffix[1:].lower() or "png", metadata=dated)
    except ValueError as error:
        raise ValueError(f"--plot {file.path}: {error}") from None
    file.write_bytes(content.getvalue())


def require_matplotlib() -> Any:
    """`matplotlib.figure`, without a display. Raises ValueError saying how to install it."""
    try:
        from matplotlib import figure
    except ImportError:
        raise ValueError("--plot needs matplotlib: pip install 'paxkv[plot]'") from None
    return figure
