"""Faults swap space may have, planted one at a time; registered beside the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from planted_bugs import around, planted

from paxkv.memory import BlockManager, SwapSpace, growth
from paxkv.memory.prefix import RowHashes, Suspended
from paxkv.memory.state import MemoryState
from paxkv.memory.transfers import HostCopies, PendingTransfers

# References and landing


@planted
def host_decrement_dropped(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: SwapSpace, swapped: Any) -> None:
        pool, drop = self._pool, self._pool.drop
        pool.drop = lambda pages: drop(pages[:-1])  # type: ignore[method-assign]
        try:
            right(self, swapped)
        finally:
            del pool.drop

    around(patch, SwapSpace, "_let_go", wrong)


@planted
def host_page_reused_before_landing(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: SwapSpace, swapped: Any) -> None:
        landed = self._landed
        self._landed = np.ones_like(landed)
        right(self, swapped)
        self._landed = landed

    around(patch, SwapSpace, "_let_go", wrong)


@planted
def host_page_read_before_landing(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: SwapSpace, row: int) -> Any:
        swapped = right(self, row)
        self._landed[:] = True
        return swapped

    around(patch, SwapSpace, "swap_out", wrong)


@planted
def unwanted_copy_never_settled(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: SwapSpace, hosts: Any) -> None:
        right(self, hosts[self._pool.refs[hosts] > 0])
        self._landed[hosts] = True

    around(patch, SwapSpace, "landed", wrong)


@planted
def swapped_row_keeps_its_pages(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: SwapSpace, row: int) -> Any:
        swapped = right(self, row)
        if swapped is not None:
            self._state.take(min(1, self._state.pool.num_available))
        return swapped

    around(patch, SwapSpace, "swap_out", wrong)


# What is moved, and where to


@planted
def shared_block_moved_twice(patch: pytest.MonkeyPatch) -> None:
    around(patch, HostCopies, "join", lambda right, self, devices, hosts: None)


@planted
def block_on_the_device_moved_nevertheless(patch: pytest.MonkeyPatch) -> None:
    around(patch, SwapSpace, "_on_device", lambda right, self, s: np.zeros_like(s.pages))


@planted
def wrong_host_page(patch: pytest.MonkeyPatch) -> None:
    around(
        patch,
        PendingTransfers,
        "out",
        lambda right, self, devices, hosts: right(self, devices, hosts[::-1].copy()),
    )


@planted
def fetched_from_the_wrong_host_page(patch: pytest.MonkeyPatch) -> None:
    around(
        patch,
        PendingTransfers,
        "into",
        lambda right, self, hosts, devices: right(self, np.roll(hosts, 1), devices),
    )


@planted
def last_page_not_moved(patch: pytest.MonkeyPatch) -> None:
    around(
        patch,
        PendingTransfers,
        "into",
        lambda right, self, hosts, devices: right(self, hosts[:-1], devices[:-1]),
    )


@planted
def moved_into_a_page_given_away(patch: pytest.MonkeyPatch) -> None:
    around(patch, PendingTransfers, "cancel", lambda right, self, devices: None)


# HostCopies


@planted
def device_page_believed_after_it_was_freed(patch: pytest.MonkeyPatch) -> None:
    around(patch, MemoryState, "_lose", lambda right, self, pages: self.transfers.cancel(pages))


@planted
def host_copy_believed_after_the_tail_was_written(patch: pytest.MonkeyPatch) -> None:
    right = growth.grow

    def wrong(state: MemoryState, plan: Any) -> None:
        tails = np.unique(plan.tails)
        hosts = state.host_copies.host_of[tails]
        right(state, plan)
        lost = (hosts > 0) & (state.host_copies.host_of[tails] == 0)
        state.host_copies.join(tails[lost], hosts[lost])

    patch.setattr("paxkv.memory.manager.grow", wrong)


@planted
def half_filled_tail_shared(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: SwapSpace, swapped: Any) -> Any:
        pages = right(self, swapped)
        twin = self._host_copies.device_of[swapped.pages[-1:]]
        if self._state.pool.refs[twin[0]] and pages[-1] == 0:
            pages[-1:] = twin
        return pages

    around(patch, SwapSpace, "_on_device", wrong)


@planted
def pairs_outlive_a_failed_step(patch: pytest.MonkeyPatch) -> None:
    around(patch, HostCopies, "clear", lambda right, self: None)


# Prefix cache


@planted
def swapped_sequences_publish_after_a_reset(patch: pytest.MonkeyPatch) -> None:
    around(patch, SwapSpace, "forget_cached", lambda right, self: None)


@planted
def resumed_row_hashes_on_from_its_last_block(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: RowHashes, row: int, suspended: Suspended) -> None:
        right(self, row, suspended)
        if suspended.blocks and suspended.chain is None:
            self._last[row] = suspended.blocks[-1]

    around(patch, RowHashes, "resume", wrong)


@planted
def a_row_that_leaves_nothing_does_so_after_swap(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: RowHashes, row: int, suspended: Suspended) -> None:
        right(self, row, suspended)
        self.enabled[row] = True

    around(patch, RowHashes, "resume", wrong)


@planted
def new_device_table_not_filled(patch: pytest.MonkeyPatch) -> None:
    around(patch, BlockManager, "patch_all", lambda right, self: None)
