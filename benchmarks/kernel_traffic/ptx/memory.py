"""Device memory as a kernel sees it: arrays at addresses, and a count of what is touched."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from benchmarks.kernel_traffic.ptx.registers import NOWHERE, Known

# What memory moves at a time, bytes.
SECTOR = 32
WARP = 32
# Arrays lie so far apart that a wrong index stays in the gap behind its own.
_APART = 40


@dataclass
class Count:
    """Reads or writes of one array.

    requested: bytes, instruction width times lanes whose predicate holds; what lanes of a warp ask
    for together counts once. sectors: of 32 bytes, each once for an instruction of a warp. touched:
    whether each sector of the array ever was.
    """

    touched: np.ndarray
    requested: int = 0
    sectors: int = 0

    @property
    def bytes(self) -> int:
        """Moved between memory (or the L2 cache) and the multiprocessors."""
        return self.sectors * SECTOR

    @property
    def footprint(self) -> int:
        """Bytes touched at least once."""
        return int(self.touched.sum()) * SECTOR


@dataclass
class Array:
    """An operand of a kernel.

    data: contents that addresses or branches may depend on; None where nobody needs them.
    """

    name: str
    nbytes: int
    data: np.ndarray | None = None
    reads: Count = field(init=False)
    writes: Count = field(init=False)

    def __post_init__(self) -> None:
        sectors = -(-self.nbytes // SECTOR)
        self.reads, self.writes = (Count(np.zeros(sectors, bool)) for _ in range(2))
        if self.data is not None:
            self.data = np.ascontiguousarray(self.data).reshape(-1).view(np.uint8)


@dataclass(frozen=True)
class Fault:
    """An access outside every array. line: of the PTX; offset: bytes from the array's begin."""

    array: str
    offset: int
    width: int
    line: int

    def __str__(self) -> str:
        return f"line {self.line}: {self.width} bytes at {self.offset} of {self.array}"


class Memory:
    """Arrays by parameter; one array may be several parameters (in place)."""

    def __init__(self, arrays: list[Array]) -> None:
        self._arrays = list({id(array): array for array in arrays}.values())
        place = {id(array): index + 1 for index, array in enumerate(self._arrays)}
        self.addresses = [place[id(array)] << _APART for array in arrays]
        self.faults: list[Fault] = []

    def access(
        self, address: np.ndarray, width: np.ndarray, lanes: np.ndarray, line: int, *, write: bool
    ) -> None:
        """Count one instruction.

        Args:
            address: uint64 `[num_lanes]`. width: bytes, of each or of all, 0 for none;
                those that are not 0 are equal.
            lanes: who takes part.
        """
        width = np.broadcast_to(width, address.shape)
        lanes = lanes & (width > 0)
        if not lanes.any():
            return
        which, offset = _split(address)
        for index in _distinct(which[lanes]):
            mine = lanes & (which == index)
            if not 0 <= index < len(self._arrays):
                self.faults.append(Fault("no array", int(address[mine][0]), int(width.max()), line))
                continue
            array = self._arrays[index]
            outside = mine & (offset + width > array.nbytes)
            if outside.any():
                at = int(offset[outside][0])
                # Below its begin: in the gap behind the array before.
                if at > 1 << (_APART - 1) and index + 1 < len(self._arrays):
                    array, at = self._arrays[index + 1], at - (1 << _APART)
                self.faults.append(Fault(array.name, at, int(width[outside][0]), line))
                mine &= ~outside
            _tally(array.writes if write else array.reads, offset, width, mine)

    def read(self, address: np.ndarray, width: int) -> tuple[np.ndarray, Known]:
        """Bytes `[num_lanes, width]`, and which lanes' are known."""
        found = np.zeros((len(address), width), np.uint8)
        known = np.zeros(len(address), bool)
        which, offset = _split(address)
        for index in _distinct(which):
            if not 0 <= index < len(self._arrays):
                continue
            data = self._arrays[index].data
            if data is not None:
                inside = (which == index) & (offset + width <= len(data))
                found[inside] = data[offset[inside, None] + np.arange(width)]
                known |= inside
        return found, known if known.any() else NOWHERE


def _split(address: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the array, and bytes from its begin."""
    which = (address >> np.uint64(_APART)).astype(np.int64) - 1
    return which, (address & np.uint64((1 << _APART) - 1)).astype(np.int64)


def _distinct(values: np.ndarray) -> list[int]:
    if len(values) and (values == values[0]).all():
        return [int(values[0])]
    return np.unique(values).tolist()


def _tally(count: Count, offset: np.ndarray, width: np.ndarray, lanes: np.ndarray) -> None:
    size = int(width[lanes].max(initial=0))
    count.requested += size * _num_distinct(offset, lanes)
    first = offset // SECTOR
    for step in range(-(-size // SECTOR) + 1):
        sector = first + step
        reached = lanes & (sector * SECTOR < offset + width)
        if not reached.any():
            break
        count.touched[sector[reached]] = True
        count.sectors += _num_distinct(sector, reached)


def _num_distinct(places: np.ndarray, lanes: np.ndarray) -> int:
    """Places that the lanes of a warp name, each once, over all warps."""
    by_warp = np.where(lanes, places, -1).reshape(-1, WARP)
    change = by_warp[:, 1:] - by_warp[:, :-1]
    if (change < 0).any():
        by_warp = np.sort(by_warp, axis=1)
        change = by_warp[:, 1:] - by_warp[:, :-1]
    return int((by_warp[:, 0] >= 0).sum() + ((change != 0) & (by_warp[:, 1:] >= 0)).sum())
