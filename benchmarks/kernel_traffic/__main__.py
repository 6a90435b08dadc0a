"""`python -m benchmarks.kernel_traffic`: what is known of every kernel without a GPU."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks.kernel_traffic.ladder import (
    BACKENDS,
    Results,
    add_lowering,
    climb,
    complaints,
    every_size,
    interpret,
    table,
)


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand; the exit status is 1 if something failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernel_traffic", description=__doc__
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, told in (
        ("lower", "lower every kernel for CUDA with this jax, into the results"),
        ("ladder", "what is known of each kernel without a GPU, as a table"),
    ):
        command = commands.add_parser(name, help=told)
        command.add_argument("--results", type=Path, default=Path("benchmarks/results"))
        if name == "lower":
            command.add_argument("--backend", default="triton", choices=BACKENDS)
    args = parser.parse_args(arguments)
    if args.command == "lower":
        return _end(add_lowering(args.results, args.backend))
    return climb_ladder(args.results)


def climb_ladder(folder: Path) -> int:
    """Run what runs here, read the rest, print and write `ladder.md` and `ladder.json`."""
    results = Results.read(folder)
    interpreted = interpret(every_size(), told=partial(print, flush=True))
    rows = list(climb(interpreted, results, every_size()))
    text = table(rows, results.planted)
    print(text, end="")
    (folder / "ladder.md").write_text(text, encoding="utf-8")
    found = {"rows": [asdict(row) for row in rows], "planted": results.planted}
    (folder / "ladder.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return _end(complaints(rows, results.planted))


def _end(wrong: list[str]) -> int:
    print("\n".join(wrong) or "nothing to complain about")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
