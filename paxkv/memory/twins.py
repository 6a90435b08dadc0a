"""Pages on the device and pages in host memory that hold the same KV."""

from __future__ import annotations

import numpy as np

from paxkv.memory.lru import Int32Array


class Twins:
    """Pairs of a device page and a host page, each page in one pair at most.

    This is what lets a shared page move once: whoever is swapped after it finds the copy that is
    there already, in either direction. A pair ends when the device page is written to or neither
    held nor cached any more, or when the host page is held by nobody.

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
