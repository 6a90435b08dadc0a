"""Page transfers between device and host memory, pending for the next step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paxkv.memory.pool import Int32Array


class Transfers(NamedTuple):
    """Page transfers of one step; all page ids int32, pages of each list distinct.

    The order in a step: read `out_devices`, write `in_devices`, copy pages (none that arrives in
    the same step), then run the layers. What was read lands in `out_hosts` at any later time, but
    not before `in_hosts` have been read.
    """

    out_devices: Int32Array
    out_hosts: Int32Array
    in_hosts: Int32Array
    in_devices: Int32Array

    def __bool__(self) -> bool:
        return bool(len(self.out_devices) or len(self.in_devices))


NOTHING = np.zeros(0, np.int32)
NO_TRANSFERS = Transfers(NOTHING, NOTHING, NOTHING, NOTHING)


class PendingTransfers:
    """Transfers collected until a step takes them."""

    def __init__(self, num_blocks: int) -> None:
        self._coming: Int32Array = np.zeros(num_blocks + 1, np.int32)
        self._num_coming = 0
        self._out: list[tuple[Int32Array, Int32Array]] = []

    def __bool__(self) -> bool:
        return bool(self._num_coming or self._out)

    def out(self, devices: Int32Array, hosts: Int32Array) -> None:
        if len(devices):
            self._out.append((devices, hosts))

    def into(self, hosts: Int32Array, devices: Int32Array) -> None:
        self._coming[devices] = hosts
        self._num_coming += len(devices)

    def arriving(self) -> Int32Array:
        """Device pages whose content is still to come, ascending."""
        return np.flatnonzero(self._coming).astype(np.int32)

    def arrives(self, devices: Int32Array) -> bool:
        """Whether the content of any of `devices` is still to come."""
        return bool(self._num_coming and self._coming[devices].any())

    def cancel(self, devices: Int32Array) -> None:
        """Cancel transfers into `devices`, where there are any."""
        if self._num_coming:
            self._num_coming -= int(np.count_nonzero(self._coming[devices]))
            self._coming[devices] = 0

    def clear(self) -> None:
        self._coming[:] = 0
        self._num_coming = 0
        self._out.clear()

    def take(self) -> Transfers:
        """Return all pending transfers and clear them."""
        if not self:
            return NO_TRANSFERS
        devices = np.concatenate([NOTHING, *(devices for devices, _ in self._out)])
        hosts = np.concatenate([NOTHING, *(hosts for _, hosts in self._out)])
        arriving = self.arriving()
        transfers = Transfers(devices, hosts, self._coming[arriving], arriving)
        self.clear()
        return transfers


class HostCopies:
    """Pairs of a device page and a host page, each page in one pair at most.

    They let a shared page move once: a sequence that is swapped later finds the copy that is there
    already, in either direction. A pair ends when the device page is written to, or is neither in
    use nor cached any more, or when the host page has no reference left.

    Attributes:
        host_of: `[num_blocks + 1]` int32, the host page paired with a device page, or 0.
        device_of: `[num_host_blocks + 1]` int32, the reverse.
    """

    def __init__(self, num_blocks: int, num_host_blocks: int) -> None:
        self.host_of: Int32Array = np.zeros(num_blocks + 1, np.int32)
        self.device_of: Int32Array = np.zeros(num_host_blocks + 1, np.int32)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def join(self, devices: Int32Array, hosts: Int32Array) -> None:
        """Pair `devices[i]` with `hosts[i]` where neither has a partner."""
        single = (self.host_of[devices] == 0) & (self.device_of[hosts] == 0)
        devices, hosts = devices[single], hosts[single]
        self.host_of[devices] = hosts
        self.device_of[hosts] = devices
        self._count += len(devices)

    def part_devices(self, devices: Int32Array) -> None:
        """End the pairs of `devices` (distinct), where there are any."""
        if self._count:
            devices = devices[self.host_of[devices] > 0]
            self.device_of[self.host_of[devices]] = 0
            self.host_of[devices] = 0
            self._count -= len(devices)

    def part_hosts(self, hosts: Int32Array) -> None:
        """End the pairs of `hosts` (distinct), where there are any."""
        self.part_devices(self.device_of[hosts[self.device_of[hosts] > 0]])

    def clear(self) -> None:
        self.part_devices(np.flatnonzero(self.host_of).astype(np.int32))
