"""Files that a command writes its results to."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from paxkv.output_file import OutputFile

PICTURES = (".svg", ".png", ".pdf", ".jpg", ".jpeg", ".webp", ".eps", ".ps", ".tif", ".tiff")


def output_file(text: str) -> OutputFile:
    """argparse's type of a file to write, checked before any work."""
    try:
        return OutputFile(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def picture_file(text: str) -> OutputFile:
    """`output_file` of a picture, whose suffix says in which format; a PNG without one."""
    file = output_file(text)
    if file.suffix.lower() not in ("", *PICTURES):
        raise argparse.ArgumentTypeError(f"{text!r} must end in one of {', '.join(PICTURES)}")
    return file


def refuse_overwriting(args: argparse.Namespace) -> None:
    """Raise ValueError if a file to write is one that another argument names."""
    named = {
        name: value
        for name, value in vars(args).items()
        if isinstance(value, str | Path | OutputFile)
    }
    for name, output in named.items():
        if not isinstance(output, OutputFile) or output.is_stream:
            continue
        for other, value in named.items():
            path = value.target if isinstance(value, OutputFile) else Path(os.path.realpath(value))
            if other != name and (path == output.target or output.same_as(path)):
                raise ValueError(
                    f"--{name}={str(output.path)!r} and --{other.replace('_', '-')} are one file, "
                    "which would be lost"
                )
