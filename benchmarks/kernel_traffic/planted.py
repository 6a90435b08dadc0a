"""Every rung of the ladder with a bug that it must catch.

As a program, with what `benchmarks/offline_compile.sh` sets up, it runs all of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.kernel_traffic import plants
from benchmarks.kernel_traffic.calls import CountedCall, attention_call
from benchmarks.kernel_traffic.interpreted import attention
from benchmarks.kernel_traffic.plants import Plant
from benchmarks.kernel_traffic.programs import attention_program
from pallas_kernels.api import ragged_paged_attention
from pallas_kernels.lab.battery import CASES, check
from pallas_kernels.lab.lowering import Program, lower
from pallas_kernels.triton import Config, Tile

MIXED = next(case for case in CASES if case.name.startswith("window, group of three and sinks"))


@dataclass(frozen=True)
class Caught:
    """rung: a to e. told: what the rung said, empty if it saw nothing."""

    rung: str
    plant: str
    told: str


def light() -> Iterator[Caught]:
    """Those that need no CUDA plugin."""
    for plant in (plants.SHORT_WINDOW, plants.EVEN_GROUP, plants.EVERY_SINK):
        yield Caught("a", plant.name, _failure(partial(check, plant.attend, MIXED)))
    program = attention_program("triton", 80, 16)
    plant = plants.UNKNOWN_OPERATION
    wrong = replace(program, function=lambda **arrays: plant.attend(**arrays))
    yield Caught("b", plant.name, lower("h200", wrong).error)
    case = replace(MIXED, window=None, sinks=False)
    told = _failure(partial(attention, plants.NEXT_PAGE.attend, case))
    yield Caught("e", f"{plants.NEXT_PAGE.name}, interpreted", told)


def _failure(run: Callable[[], None]) -> str:
    try:
        run()
    except AssertionError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        return "; ".join(
            line for line in lines if line.startswith(("output", "lse", "Mism", "nan"))
        )
    return ""


def heavy(target: str, dump: Path) -> Iterator[Caught]:
    """Those that must be compiled for a GPU."""
    from benchmarks.kernel_traffic.offline_traffic import measure
    from pallas_kernels.lab.offline import compile_for

    for name, tile, wanted in (
        ("more rows than there are registers", Tile(128, 64, num_warps=4, num_stages=1), "spill"),
        ("more stages than shared memory holds", Tile(64, 256, num_stages=4), "hared memory"),
        ("one stage, so nothing to copy ahead", Tile(64, 32, num_stages=1), "no asynchronous copy"),
    ):
        try:
            rows = compile_for(target, _with(tile, name), dump)
            found = [fault for row in rows for fault in row.faults()]
        except Exception as error:
            found = str(error).strip().splitlines()
        told = "; ".join(fault[:200] for fault in found if wanted in fault)
        yield Caught("c", f"{name}, {target}", told)
    for rung, call, wanted in _traffic(target):
        complaints = [x for x in measure(target, call, dump).complaints() if wanted in x]
        yield Caught(rung, f"{call.name}, {target}", "; ".join(complaints[:1]))


def _with(tile: Tile, name: str) -> Program:
    program = attention_program("triton", 256, 16)

    def attend(**arrays: Any) -> Any:
        return ragged_paged_attention(**arrays, backend="triton", config=Config(tile, tile))

    return Program(name, attend, program.arguments)


def _traffic(target: str) -> Iterator[tuple[str, CountedCall, str]]:
    """Rung, call of a kernel with a bug, and what must be said of it."""
    triton = (plants.DOUBLE_LOAD, plants.WIDE_WINDOW, plants.NEXT_PAGE)
    mosaic = (plants.MOSAIC_DOUBLE_LOAD, plants.MOSAIC_WIDE_WINDOW, plants.MOSAIC_NEXT_PAGE)
    yield from _counted("triton", *triton)
    if target == "h200":
        yield from _counted("mosaic", *mosaic)


def _counted(
    backend: str, twice: Plant, wide: Plant, next_page: Plant
) -> Iterator[tuple[str, CountedCall, str]]:
    lengths = [(1, 400 + 11 * row) for row in range(33)]
    plain = attention_call(backend, 128, 16, "", lengths)
    windowed = attention_call(backend, 128, 16, "", lengths, window=256, keeps_old=True)
    for rung, plant, call, wanted in (
        ("d", twice, plain, "bytes of pages are"),
        ("d", wide, windowed, "bytes of pages are"),
        ("e", next_page, plain, "of k_pages"),
    ):
        options: dict[str, Any] = {"window": 256} if call is windowed else {}
        function = partial(plant.attend, **options)
        name = plant.name if backend == "triton" else f"{backend}, {plant.name}"
        yield rung, replace(call, name=name, function=lambda f=function, **x: f(**x)), wanted


def main() -> int:
    """Write what each rung said; 1 if one saw nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dump", type=Path, required=True, help="where XLA dumps PTX")
    parser.add_argument("--out", type=Path, required=True, help="file name without suffix")
    args = parser.parse_args()
    found = [*light(), *heavy("h200", args.dump), *heavy("a100", args.dump)]
    for caught in found:
        print(caught.rung, caught.plant, caught.told or "NOT SEEN", sep=": ", flush=True)
    text = json.dumps([asdict(caught) for caught in found], indent=1)
    args.out.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    return 0 if all(caught.told for caught in found) else 1


if __name__ == "__main__":
    sys.exit(main())
