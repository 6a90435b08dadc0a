"""What the host code that Mosaic GPU dumps passes to its kernel: pointers, and tensor maps of TMA.

Read from the dump alone, the MLIR shortly before the launch is lowered; every value of it is either
followed or refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.kernel_traffic.ptx import MAP_BYTES, Array, TensorMap, TensorMaps

# Bytes of an element, by the number that Mosaic GPU gives its type.
_ITEM_BYTES = {1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 2}
_VIEW = "memref.reinterpret_cast"
# Give their first operand, seen otherwise.
_SAME = {
    _VIEW,
    "memref.transpose",
    "memref.extract_aligned_pointer_as_index",
    "builtin.unrealized_conversion_cast",
    "llvm.inttoptr",
}
_VALUE = re.compile(r"%[\w#]+")


@dataclass(frozen=True)
class MapOf:
    """A tensor map of an argument of the call; see `TensorMap`."""

    argument: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    itemsize: int


# Of a kernel's parameter: the argument of the call that it points to, or the maps that it holds.
Passed = int | tuple[MapOf, ...]


def read(log: str) -> tuple[Passed, ...]:
    """What each parameter of the kernel is.

    Args:
        log: the dump of the passes (`*.mlir-passes.log`).

    Raises:
        ValueError: a value comes from an operation that is not followed.
    """
    launch = log.rfind("gpu.launch_func")
    begin = log.rfind("func.func @", 0, launch)
    if min(launch, begin) < 0:
        raise ValueError("the dump has no gpu.launch_func")
    found = re.search(r"args\((.*?)\)", log[launch : log.index("\n", launch)])
    assert found is not None
    host = _Host(log[begin:launch])
    return tuple(host.passed(name) for name in _VALUE.findall(found.group(1)))


def bound(passed: Sequence[Passed], arrays: Sequence[Array]) -> list[Array | TensorMaps]:
    """The kernel's parameters.

    Args:
        arrays: arguments of the call, inputs and outputs.
    """
    return [
        arrays[one]
        if isinstance(one, int)
        else TensorMaps(
            tuple(TensorMap(arrays[x.argument], x.shape, x.strides, x.box, x.itemsize) for x in one)
        )
        for one in passed
    ]


@dataclass(frozen=True)
class _Place:
    """Of the stack: what stands there by index."""

    held: dict[int, Any]
    index: int


class _Host:
    """Values of the host function: integers, places, and arguments of the call as strings."""

    def __init__(self, text: str) -> None:
        heading, _, body = text.partition("\n")
        *_, arguments = re.findall(r"(%\w+): !llvm\.ptr", heading)
        held = {index: str(index) for index in range(body.count(arguments))}
        self._values: dict[str, Any] = {arguments: _Place(held, 0)}
        for line in body.splitlines():
            name, equals, operation = line.strip().partition(" = ")
            if not equals or not name.startswith("%"):
                name, operation = "", line.strip()
            value = self._value(operation)
            if value is not None:
                self._values[name] = value

    def passed(self, name: str) -> Passed:
        value = self._values.get(name)
        if isinstance(value, str):
            return int(value)
        if isinstance(value, _Place):
            maps = [value.held[at] for at in sorted(value.held)]
            if sorted(value.held) == list(range(0, len(maps) * MAP_BYTES, MAP_BYTES)):
                return tuple(maps)
        raise ValueError(f"{name} is neither an argument nor tensor maps")

    def _read(self, name: str) -> Any:
        if name not in self._values:
            raise ValueError(f"{name} comes from an operation that is not followed")
        return self._values[name]

    def _value(self, operation: str) -> Any:
        """Of one operation; None where it has none or is not followed."""
        kind = operation.partition(" ")[0].partition("(")[0]
        names = _VALUE.findall(operation)
        if kind == "llvm.mlir.constant":
            return int(re.findall(r"\((-?\d+) :", operation)[0])
        if kind == "llvm.alloca":
            return _Place({}, 0)
        if kind == "llvm.store":
            place = self._read(names[1])
            place.held[place.index] = self._values.get(names[0])
        elif kind == "llvm.load":
            place = self._read(names[0])
            return place if "array<" in operation else place.held[place.index]
        elif kind == "llvm.getelementptr" and (at := re.search(r"\[(\d+)\]", operation)):
            place = self._read(names[0])
            return replace(place, index=place.index + int(at.group(1)))
        elif kind == "llvm.insertvalue":
            field = re.findall(r"\[([\d, ]+)\]", operation)[0]
            if field == "2" and self._read(names[0]):
                raise ValueError("an array that does not begin at its pointer")
            return self._values.get(names[0] if field in "01" else names[1])
        elif kind in _SAME and (kind != _VIEW or "offset: [0]," in operation):
            return self._values.get(names[0])
        elif kind == "call":
            self._describe(names)
        return None

    def _describe(self, names: Sequence[str]) -> None:
        """`mosaic_gpu_init_tma_desc(map, array, type, rank, shape, strides, swizzle, box)`."""
        to, array, kind, rank, *lists = (self._read(name) for name in names[:8])
        shape, strides, box = (
            tuple(place.held[index] for index in range(rank))
            for place in (lists[0], lists[1], lists[3])
        )
        to.held[to.index] = MapOf(int(array), shape, strides, box, _ITEM_BYTES[kind])
