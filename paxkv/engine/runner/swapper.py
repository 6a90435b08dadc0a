"""Moves pages between the device and host memory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import jax
import numpy as np

from paxkv.cache.pages import PageLayout
from paxkv.cache.swap import Content, HostPages, chunks
from paxkv.engine.runner import programs as declared
from paxkv.engine.runner.compiler import CompiledPrograms
from paxkv.engine.runner.program import Variant
from paxkv.memory import Transfers


@dataclass(frozen=True)
class Landing:
    """A chunk on its way to host pages `hosts`."""

    content: Content
    hosts: np.ndarray


class Swapper:
    """The host pool, and copies in flight to it.

    Transfers go in chunks of two fixed sizes, so there are two programs for each direction. Chunks
    land in the order of their launch.
    """

    def __init__(self, layout: PageLayout, num_blocks: int, programs: CompiledPrograms) -> None:
        self._host = HostPages(layout, num_blocks)
        self._programs = programs
        self._landing: deque[Landing] = deque()

    @property
    def num_landing(self) -> int:
        """Chunks that were launched and have not landed."""
        return len(self._landing)

    def launch(self, pages: list[tuple[jax.Array, ...]], transfers: Transfers) -> None:
        """Read outgoing pages, then write incoming ones; `pages` are donated and replaced."""
        start = 0
        for size in chunks(self._programs.arguments.chunk_sizes, len(transfers.out_devices)):
            part = slice(start, start + size)
            ids = _padded(transfers.out_devices[part], size)
            content = self._programs.get(declared.SWAP_OUT, Variant(rows=size))(tuple(pages), ids)
            for array in content:
                array.copy_to_host_async()
            self._landing.append(Landing(content, transfers.out_hosts[part]))
            start += size
        start = 0
        for size in chunks(self._programs.arguments.chunk_sizes, len(transfers.in_devices)):
            part = slice(start, start + size)
            ids = _padded(transfers.in_devices[part], size)
            self._write(pages, self._host.read(transfers.in_hosts[part], size), ids)
            start += size

    def _write(
        self,
        pages: list[tuple[jax.Array, ...]],
        content: tuple[np.ndarray, ...],
        ids: np.ndarray,
    ) -> None:
        sent = jax.device_put(content)
        for group in self._programs.arguments.groups:
            part = group.part
            variant = Variant(kinds=group.alike, rows=len(ids))
            scatter = self._programs.get(declared.SWAP_IN, variant)
            pages[part] = scatter(tuple(pages[part]), sent, ids, np.int32(group.start))

    def land(self, count: int) -> np.ndarray:
        """Wait for the `count` oldest chunks; returns the host pages that hold them now."""
        landed = [np.zeros(0, np.int32)]
        for _ in range(count):
            chunk = self._landing.popleft()
            self._host.write(chunk.hosts, chunk.content)
            landed.append(chunk.hosts)
        return np.concatenate(landed)

    def drop(self) -> None:
        """Forget all copies in flight."""
        self._landing.clear()


def _padded(pages: np.ndarray, size: int) -> np.ndarray:
    ids = np.zeros(size, np.int32)
    ids[: len(pages)] = pages
    return ids
