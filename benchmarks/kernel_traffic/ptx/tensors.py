"""Arrays as TMA sees them: boxes of a tensor, counted where they touch memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from benchmarks.kernel_traffic.ptx.memory import SECTOR, Array, Fault

# Bytes that a map takes in a kernel's parameter.
MAP_BYTES = 128


@dataclass(frozen=True)
class TensorMap:
    """What one copy moves of an array.

    shape, strides, box: in elements, outermost dimension first; the innermost stride is 1.
    itemsize: bytes of an element.

    Raises:
        ValueError: ranks differ, or the tensor is larger than the array.
    """

    array: Array
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    itemsize: int

    def __post_init__(self) -> None:
        if not len(self.shape) == len(self.strides) == len(self.box) or self.strides[-1] != 1:
            raise ValueError(
                f"shape={self.shape}, strides={self.strides} and box={self.box} are no tensor map"
            )
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides))
        if (last + 1) * self.itemsize > self.array.nbytes:
            raise ValueError(
                f"shape={self.shape} with strides={self.strides} reaches beyond the "
                f"{self.array.nbytes} bytes of {self.array.name}"
            )

    @property
    def box_bytes(self) -> int:
        return prod(self.box) * self.itemsize

    @cached_property
    def runs(self) -> np.ndarray:
        """Indices within the box of its contiguous runs, `[num_runs, rank - 1]`."""
        outer = np.indices(self.box[:-1], np.int64)
        return outer.reshape(len(self.box) - 1, -1).T


@dataclass(frozen=True)
class TensorMaps:
    """A kernel's parameter that holds maps, one after the other."""

    maps: tuple[TensorMap, ...]


def touch(box: TensorMap, where: np.ndarray, line: int, *, write: bool) -> list[Fault]:
    """Count the boxes that begin at `where`, `[num_boxes, rank]`.

    A box that begins right behind the last element of a dimension moves nothing: so does a kernel
    ask for zeros. Any other that reaches outside is a fault; of it the part inside is counted.
    """
    shape, strides = np.array(box.shape), np.array(box.strides)
    where = where[~(where == shape).any(1)]
    outside = ((where < 0) | (where + np.array(box.box) > shape)).any(1)
    offsets = (where[outside] * strides).sum(1) * box.itemsize
    faults = [Fault(box.array.name, int(x), box.box_bytes, line) for x in offsets]

    index = where[:, None, :-1] + box.runs
    inside = ((index >= 0) & (index < shape[:-1])).all(2)
    begin = np.maximum(where[:, -1], 0)[:, None]
    end = np.minimum(where[:, -1] + box.box[-1], shape[-1])[:, None]
    inside &= end > begin
    row = (index * strides[:-1]).sum(2)
    first, last = (row + begin) * box.itemsize, (row + end) * box.itemsize
    count = box.array.writes if write else box.array.reads
    count.requested += int((last - first)[inside].sum())
    which = np.broadcast_to(np.arange(len(where))[:, None], inside.shape)[inside]
    reached = _sectors(first[inside], last[inside])
    which = np.broadcast_to(which[:, None], reached.shape)[reached >= 0]
    sector = reached[reached >= 0]
    count.touched[sector] = True
    # Each sector once for a box.
    count.sectors += len(np.unique(which * len(count.touched) + sector))
    return faults


def _sectors(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Sectors of the bytes from `first` to before `last`, `[num_runs, most]`; -1 for none."""
    most = int((last - first).max(initial=0)) // SECTOR + 2
    sector = first[:, None] // SECTOR + np.arange(most)
    return np.where(sector * SECTOR < last[:, None], sector, -1)
