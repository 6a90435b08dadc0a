"""Lines of Python in the packages that ship, against the sizes the project wants to keep.

    python benchmarks/sizes.py [--check]

Counts as `wc -l` does. With --check the exit status is 1 when a size is over its target.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("paxkv", "pallas_kernels", "convert")
ENGINE = "paxkv/engine/"
LONG = 350
"""Lines from which a file is listed; a kernel, a battery or a decoder may be longer."""


@dataclass(frozen=True)
class Size:
    """A count and the largest it may be; `limit` None reports it only."""

    name: str
    value: int
    limit: int | None = None

    @property
    def is_over(self) -> bool:
        return self.limit is not None and self.value > self.limit

    def __str__(self) -> str:
        line = f"{self.name:30}{self.value:8,}"
        if self.limit is not None:
            line += f"  of {self.limit:,}{', too large' if self.is_over else ''}"
        return line


def count_lines(root: Path) -> dict[str, int]:
    """Lines by path relative to `root`, of every Python file of the packages."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes().count(b"\n")
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
    }


def measure(lines: dict[str, int]) -> list[Size]:
    """Totals, packages and largest folders, those with a target first."""

    def total(folder: str) -> int:
        return sum(count for path, count in lines.items() if path.startswith(folder))

    # An empty `__init__.py` is no file to read.
    folders = Counter(
        path.rpartition("/")[0] for path in lines if not path.endswith("/__init__.py")
    )
    in_engine = {name: count for name, count in folders.items() if f"{name}/".startswith(ENGINE)}
    largest, files = max(folders.items(), key=lambda item: item[1])
    return [
        Size("all packages", sum(lines.values()), 27_000),
        Size("paxkv/engine/", total(ENGINE), 4_300),
        Size("files in a folder of engine", max(in_engine.values(), default=0), 14),
        Size("paxkv/server/", total("paxkv/server/"), 4_400),
        *(Size(package, total(f"{package}/")) for package in PACKAGES),
        Size(f"files in {largest}", files),
    ]


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Print the sizes and the long files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    args = parser.parse_args(arguments)
    lines = count_lines(root)
    sizes = measure(lines)
    for size in sizes:
        print(size)
    for path, count in sorted(lines.items(), key=lambda item: -item[1]):
        if count > LONG:
            print(f"{path:50}{count:8,}")
    return 1 if args.check and any(size.is_over for size in sizes) else 0


if __name__ == "__main__":
    sys.exit(main())
