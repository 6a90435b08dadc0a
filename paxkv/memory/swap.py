"""Swap space: host memory for the KV of preempted sequences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paxkv.memory import invariants
from paxkv.memory.pool import Int32Array, PagePool
from paxkv.memory.prefix import Suspended
from paxkv.memory.results import Allocation
from paxkv.memory.state import MemoryState
from paxkv.memory.tables import Rows
from paxkv.memory.transfers import HostCopies, PendingTransfers, Transfers


@dataclass(eq=False, slots=True)
class Swapped:
    """A sequence in host memory.

    Attributes:
        pages: its host pages, in order.
        num_tokens: slots it had, all of them computed.
        hashes: what it had put into the prefix cache.
    """

    pages: Int32Array
    num_tokens: int
    hashes: Suspended


@dataclass(frozen=True, slots=True)
class SwapStats:
    """Host pages now, and counters since the manager was made.

    Attributes:
        total_blocks, free_blocks, used_blocks: host pages; one that was given up before its copy
            had landed is neither free nor used until then.
        sequences: swapped now.
        pages_out: pages whose copy has landed in host memory.
        pages_in: pages sent back to the device.
    """

    total_blocks: int
    free_blocks: int
    used_blocks: int
    sequences: int
    pages_out: int
    pages_in: int


class SwapSpace:
    """Host pages, the sequences that hold them, and pending transfers.

    A second `PagePool`. A page that several sequences share moves once in either direction and is
    shared again afterwards (`HostCopies`); one that is still on the device, held by others or
    cached, is taken from there. A host page is neither read nor reused before its copy has
    landed.

    Args:
        state: the device's side.
        num_blocks: usable host pages; 0 means that nothing is ever swapped.
    """

    def __init__(self, state: MemoryState, num_blocks: int) -> None:
        self._state = state
        self._tables = state.tables
        self._pool = PagePool(num_blocks)
        self._host_copies: HostCopies = state.host_copies
        self._transfers: PendingTransfers = state.transfers
        self._landed = np.ones(num_blocks + 1, np.bool_)
        self._held: dict[int, Swapped] = {}
        self._pages_out = 0
        self._pages_in = 0

    @property
    def num_blocks(self) -> int:
        return self._pool.num_pages

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_available

    def swap_out(self, row: int) -> Swapped | None:
        """Move a sequence to host memory and free its row.

        Returns:
            None, nothing having changed, if host pages run out.

        Raises:
            ValueError: the row's pages are still to be filled by the next step: every slot must
                have been computed by steps that were launched before.
        """
        pages = self._tables.held(self._tables.require_row(row)).copy()
        if self._transfers.arrives(pages) or self._state.copies.writes(pages):
            raise ValueError(f"row is {row}; its pages are still to be filled by the next step")
        hosts = self._host_copies.host_of[pages]
        alone = hosts == 0
        count = int(np.count_nonzero(alone))
        if count > self._pool.num_available or not self.num_blocks:
            return None
        self._pool.share(hosts[~alone])
        fresh, _ = self._pool.take(count)
        hosts[alone] = fresh
        self._landed[fresh] = False
        self._transfers.out(pages[alone], fresh)
        self._host_copies.join(pages[alone], fresh)
        hashes = self._state.row_hashes.suspend(row)
        swapped = Swapped(hosts, int(self._tables.num_tokens[row]), hashes)
        self._held[id(swapped)] = swapped
        self._state.end(row)
        return swapped

    def swap_out_rows(self, rows: Rows) -> list[Swapped] | None:
        """`swap_out` of all `rows`, or of none if host pages run out."""
        pages = np.unique(self._tables.flat(self._tables.require_live(rows))[0])
        if np.count_nonzero(self._host_copies.host_of[pages] == 0) > self._pool.num_available:
            return None
        away = [self.swap_out(row) for row in np.asarray(rows).tolist()]
        return [swapped for swapped in away if swapped is not None] or None

    def swap_in(self, swapped: Swapped, num_tokens: int, *, headroom: int = 0) -> Allocation | None:
        """Give a swapped sequence a row and its pages back, and `num_tokens` slots more.

        Args:
            headroom: device pages that must stay free beyond those taken.

        Returns:
            None, nothing having changed, if there is no row, not enough room, or a page has not
            landed yet. `num_cached_tokens` are those it had.

        Raises:
            ValueError: `swapped` is not in host memory, or would outgrow its block table.
        """
        self._require(swapped)
        size = self._tables.block_size
        total = swapped.num_tokens + num_tokens
        if num_tokens < 1 or total > self._tables.max_columns * size:
            raise ValueError(
                f"num_tokens is {num_tokens}; a sequence of {swapped.num_tokens} tokens can grow "
                f"by 1 to {self._tables.max_columns * size - swapped.num_tokens}"
            )
        pages = self._on_device(swapped)
        absent = pages == 0
        hosts = swapped.pages[absent]
        fresh = -(-total // size) - len(pages)
        rows = self._tables.spare_rows(1)
        room = self._state.pool.room_beside(pages[~absent])
        if rows is None or len(hosts) + fresh + headroom > room or not self._landed[hosts].all():
            return None
        self._state.pool.pin(pages[~absent])
        taken = self._state.take(len(hosts) + fresh)
        pages[absent] = taken[: len(hosts)]
        self._transfers.into(hosts, pages[absent])
        self._pages_in += len(hosts)
        row = int(rows[0])
        self._tables.start(row, np.concatenate([pages, taken[len(hosts) :]]), total)
        self._state.row_hashes.resume(row, swapped.hashes)
        self._pair(pages, swapped)
        self._let_go(swapped)
        return Allocation(row, swapped.num_tokens, num_tokens)

    def _pair(self, pages: Int32Array, swapped: Swapped) -> None:
        """Pair full `pages` with the host pages they came from: both hold the same."""
        full = swapped.num_tokens // self._tables.block_size
        pages, hosts = pages[:full], swapped.pages[:full]
        self._host_copies.part_hosts(hosts[self._host_copies.device_of[hosts] != pages])
        self._host_copies.join(pages, hosts)

    def _on_device(self, swapped: Swapped) -> Int32Array:
        """Per page of `swapped` a device page with the same content, or 0.

        The last page never has one unless it is full: it is about to be written.
        """
        pages = self._host_copies.device_of[swapped.pages]
        for column, page in enumerate(self._state.row_hashes.find(swapped.hashes)):
            if not pages[column]:
                pages[column] = page
        pages[swapped.num_tokens // self._tables.block_size :] = 0
        return pages

    def cost(self, rows: Rows) -> tuple[int, int]:
        """Cost of preempting distinct `rows`: pages to move, there and back, and tokens to
        recompute. A page that they share counts once.

        A cached page that others hold costs nothing to get back, either way.
        """
        batch = self._tables.require_live(rows)
        held, columns = self._tables.flat(batch)
        pages, first, inside = np.unique(held, return_index=True, return_counts=True)
        pool, size = self._state.pool, self._tables.block_size
        shared = pool.refs[pages] > inside
        cached = shared & pool.cached[pages]
        lengths = np.repeat(self._tables.num_tokens[batch], self._tables.columns(batch))
        filled = np.minimum(size, lengths - columns * size)[first]
        out = int(np.count_nonzero(self._host_copies.host_of[pages] == 0))
        back = len(pages) - int(np.count_nonzero(shared))
        return out + back, int(filled[~cached].sum())

    def discard(self, swapped: Swapped) -> None:
        """End a swapped sequence. Raises ValueError if it is not in host memory."""
        self._require(swapped)
        self._let_go(swapped)

    def _require(self, swapped: Swapped) -> None:
        if id(swapped) not in self._held:
            raise ValueError("swapped is not a sequence in host memory")

    def _let_go(self, swapped: Swapped) -> None:
        del self._held[id(swapped)]
        idle = swapped.pages[self._pool.drop(swapped.pages)]
        self._host_copies.part_hosts(idle)
        self._pool.settle(idle[self._landed[idle]])

    def forget_cached(self) -> None:
        """Bar swapped sequences from the prefix cache, which was emptied."""
        for swapped in self._held.values():
            swapped.hashes.enabled = False

    def drop_all(self) -> None:
        """Forget every swapped sequence and every move, landed or not: a step has failed."""
        self._held.clear()
        self._transfers.clear()
        self._host_copies.clear()
        self._landed[:] = True
        self._pool = PagePool(self.num_blocks)

    # For the device step

    def take_transfers(self) -> Transfers:
        """Take the transfers of the next step."""
        return self._transfers.take()

    def landed(self, hosts: Int32Array) -> None:
        """Note that the copies into `hosts`, launched by an earlier step, are complete."""
        self._landed[hosts] = True
        self._pages_out += len(hosts)
        self._pool.settle(hosts[self._pool.refs[hosts] == 0])

    # Statistics and checks

    def stats(self) -> SwapStats:
        return SwapStats(
            total_blocks=self.num_blocks,
            free_blocks=self._pool.num_available,
            used_blocks=int(np.count_nonzero(self._pool.refs)),
            sequences=len(self._held),
            pages_out=self._pages_out,
            pages_in=self._pages_in,
        )

    def snapshot(self) -> tuple[object, ...]:
        """The whole state as a value."""
        return (
            tuple(
                (swapped.num_tokens, tuple(swapped.pages.tolist()), swapped.hashes.enabled)
                for swapped in self._held.values()
            ),
            tuple(self._pool.refs.tolist()),
            tuple(self._pool.free_pages().tolist()),
            tuple(self._landed.tolist()),
            tuple(self._host_copies.host_of.tolist()),
            tuple(self._transfers.arriving().tolist()),
            self.stats(),
        )

    def check(self) -> None:
        """Raise `InvariantError` if the parts contradict each other."""
        invariants.check_host_pool(
            [swapped.pages for swapped in self._held.values()], self._pool, self._landed
        )
        invariants.check_host_copies(self._host_copies, self._state.pool, self._pool)
        invariants.check_transfers(self._transfers, self._state.copies, self._state.pool)
