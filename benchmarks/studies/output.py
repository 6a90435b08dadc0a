"""Where a study's figures go: the terminal, JSON, Markdown, a picture."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.console import Console

from paxkv.bench.figures import FigureTable
from paxkv.cli.result_files import output_file, picture_file


def add_output_flags(
    parser: argparse.ArgumentParser, *, markdown: bool = True, plot: bool = False
) -> None:
    """Add `--json`, and `--markdown` and `--plot` for the studies that have them."""
    add = partial(parser.add_argument, metavar="OUT")
    add("--json", type=output_file, help="write all figures here")
    if markdown:
        add("--markdown", type=output_file, help="write the tables here")
    if plot:
        add("--plot", type=picture_file, help="draw .svg, .png or .pdf (needs paxkv[plot])")


def write_output(
    args: argparse.Namespace, heading: str, report: dict[str, Any], tables: Sequence[FigureTable]
) -> None:
    """Print the tables, and write what `--json` and `--markdown` ask for."""
    for table in tables:
        table.print(Console())
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    if getattr(args, "markdown", None) is not None:
        text = f"## {heading}\n\n" + "\n".join(table.markdown() for table in tables)
        args.markdown.write_text(text)
