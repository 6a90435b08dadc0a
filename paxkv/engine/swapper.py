"""Carries pages between the device and host memory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import jax
import numpy as np

from paxkv.cache.pages import PageLayout, Pages
from paxkv.cache.swap import HostPages, chunks
from paxkv.engine.program_table import ProgramTable
from paxkv.memory import Moves


@dataclass(frozen=True)
class Landing:
    """A chunk on its way to host pages `hosts`."""

    content: jax.Array
    hosts: np.ndarray


class Swapper:
    """The host pool, and the copies on their way to it.

    Moves go in chunks of two fixed sizes, so that there are two programs for either direction.
    Chunks land in the order they left.
    """

    def __init__(self, layout: PageLayout, num_blocks: int, programs: ProgramTable) -> None:
        self._host = HostPages(layout, num_blocks)
        self._programs = programs
        self._landing: deque[Landing] = deque()

    @property
    def num_landing(self) -> int:
        """Chunks that have left and not landed."""
        return len(self._landing)

    def launch(self, pages: Pages, moves: Moves) -> Pages:
        """Read what leaves, then write what arrives; returns the pages, the old ones donated."""
        start = 0
        for size in chunks(self._programs.chunk_sizes, len(moves.out_devices)):
            ids = np.zeros(size, np.int32)
            part = moves.out_devices[start : start + size]
            ids[: len(part)] = part
            content = self._programs.gather(size)(pages, ids)
            content.copy_to_host_async()
            self._landing.append(Landing(content, moves.out_hosts[start : start + size]))
            start += size
        start = 0
        for size in chunks(self._programs.chunk_sizes, len(moves.in_devices)):
            ids = np.zeros(size, np.int32)
            part = moves.in_devices[start : start + size]
            ids[: len(part)] = part
            content = self._host.read(moves.in_hosts[start : start + size], size)
            pages = self._programs.scatter(size)(pages, content, ids, np.int32(len(part)))
            start += size
        return pages

    def land(self, count: int) -> np.ndarray:
        """Wait for the `count` oldest chunks; returns the host pages that hold them now."""
        landed = [np.zeros(0, np.int32)]
        for _ in range(count):
            chunk = self._landing.popleft()
            self._host.write(chunk.hosts, np.asarray(chunk.content))
            landed.append(chunk.hosts)
        return np.concatenate(landed)

    def drop(self) -> None:
        """Nothing on its way is wanted any more."""
        self._landing.clear()
