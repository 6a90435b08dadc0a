"""The memory driver with swap space: a second pretended memory, and copies that land late."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
from memory_driver import SIZES, DriverFailure, MemoryDriver
from naive_swap import Asleep, HostPage, NaiveSwap
from pretended_device import Live, Waiting

from paxkv.memory import BlockManager, Swapped

HOST_SIZES = (0, 3, 8, 20, 60)
"""Host pages: none, too few, enough."""


@dataclass
class Sleeper:
    """A swapped sequence as its owner knows it."""

    swapped: Swapped
    live: Live
    modelled: Asleep | None


@dataclass
class Flight:
    """A copy on its way to host memory: where to, and what."""

    hosts: np.ndarray
    kv: np.ndarray
    modelled: list[HostPage] = field(default_factory=list)


class SwapDriver(MemoryDriver):
    """One block manager with swap space under test; see `MemoryDriver`."""

    def __init__(self, bm: BlockManager, rng: random.Random, **options: object) -> None:
        super().__init__(bm, rng, **options)  # type: ignore[arg-type]
        self.model: NaiveSwap = NaiveSwap(
            bm.num_blocks,
            bm.block_size,
            len(bm.num_tokens),
            num_host_blocks=bm.swap.num_blocks,
        )
        self.asleep: list[Sleeper] = []
        self.flights: list[Flight] = []
        self.leaving: list[HostPage] = []
        self.host_kv = np.zeros((bm.swap.num_blocks + 1, bm.block_size), np.int64)
        if bm.swap.num_blocks:
            self.operations += [
                (6, self.swap_out),
                (6, self.swap_in),
                (6, self.land),
                (1, self.discard),
            ]
        self.seldom.append(self.fail)

    # Operations

    def swap_out(self) -> None:
        limit = self.bm.max_tokens_per_row
        rows = self.rows(lambda s: s.computed == s.granted < limit)
        if rows:
            self.put_away(self.rng.choice(rows))

    def put_away(self, row: int) -> None:
        before = self.bm.snapshot()
        known = self.on_host()
        swapped = self.bm.swap.swap_out(row)
        modelled = self.model.swap_out(row) if self.exact else None
        if swapped is None:
            assert modelled is None, "a swap was refused"
            assert self.bm.snapshot() == before, "a refused swap left traces"
            self.done["refused swaps"] += 1
            return
        assert not self.exact or modelled is not None, "a swap that cannot be done was done"
        if modelled is not None:
            shared = [page in known for page in modelled.pages]
            self.leaving += [page for page, old in zip(modelled.pages, shared) if not old]
            self.done["shared"] += sum(shared)
        self.asleep.append(Sleeper(swapped, self.live.pop(row), modelled))

    def on_host(self) -> list[HostPage]:
        return [page for sequence in self.model.asleep for page in sequence.pages]

    def swap_in(self) -> None:
        if not self.asleep:
            return
        sleeper = self.rng.choice(self.asleep)
        live = sleeper.live
        left = len(live.tokens) - live.granted
        count = self.rng.randint(1, left) if left else 1
        headroom = self.rng.choice([0, 0, 1, 3])
        before = self.bm.snapshot()
        allocation = self.bm.swap.swap_in(sleeper.swapped, count, headroom=headroom)
        expected = None
        if sleeper.modelled is not None:
            expected = self.model.swap_in(sleeper.modelled, live.tokens, count, headroom)
        if allocation is None:
            assert expected is None, "a sequence was left in host memory"
            assert self.bm.snapshot() == before, "a refused return left traces"
            self.done["refused returns"] += 1
            return
        assert not self.exact or expected == allocation.row, f"{allocation}, not {expected}"
        assert (allocation.num_cached_tokens, allocation.num_new_tokens) == (live.granted, count)
        if not left:
            live.tokens.append(self.rng.randrange(2))
        live.granted += count
        self.asleep.remove(sleeper)
        self.live[allocation.row] = live
        self.cache_blocks(allocation.row, min(live.granted, live.prompt))

    def land(self) -> None:
        """Some copy arrives, not always the oldest."""
        if self.flights:
            flight = self.flights.pop(self.rng.randrange(len(self.flights)))
            self.host_kv[flight.hosts] = flight.kv
            self.bm.swap.landed(flight.hosts)
            self.model.land(flight.modelled)

    def discard(self) -> None:
        if self.asleep:
            sleeper = self.asleep.pop(self.rng.randrange(len(self.asleep)))
            self.bm.swap.discard(sleeper.swapped)
            if sleeper.modelled is not None:
                self.model.discard(sleeper.modelled)

    def fail(self) -> None:
        """A step has failed: swap space is emptied, its sequences are computed again.

        The device's table is new, as after a step that had it donated.
        """
        self.step()
        self.device.table[:] = 0
        self.bm.patch_all()
        self.bm.swap.drop_all()
        self.model.drop_all()
        self.flights.clear()
        for sleeper in self.asleep:
            live = sleeper.live
            if live.weights == self.weights and len(self.waiting) < 6:
                self.waiting.append(Waiting(live.tokens, live.salt, live.prompt, live.chain))
        self.asleep.clear()

    def move(self) -> None:
        """Read what leaves, copy pages, write what arrives: copies never touch the latter."""
        moves = self.bm.swap.take_transfers()
        assert len(set(moves.out_hosts.tolist())) == len(moves.out_hosts)
        assert len(set(moves.in_devices.tolist())) == len(moves.in_devices)
        assert not self.exact or len(moves.out_hosts) == len(self.leaving), "moved twice, or not"
        arriving = len(moves.in_devices)
        assert not self.exact or arriving == self.model.num_arriving, "moved in for nobody"
        kv = self.device.kv
        if len(moves.out_devices):
            flight = Flight(moves.out_hosts, kv[moves.out_devices], list(self.leaving))
            self.flights.append(flight)
        super().move()
        kv[moves.in_devices] = self.host_kv[moves.in_hosts]
        self.done["moved in"] += arriving
        self.leaving.clear()
        self.model.arriving.clear()

    def compare(self) -> None:
        super().compare()
        bm, model = self.bm, self.model
        stats = bm.swap.stats()
        assert stats.used_blocks == model.host_used
        assert stats.free_blocks == bm.swap.num_free_blocks == model.host_free
        assert stats.sequences == len(self.asleep) == len(model.asleep)
        assert stats.pages_in == model.moved_in
        named: dict[int, HostPage] = {}
        for sleeper in self.asleep:
            assert sleeper.modelled is not None
            for page, modelled in zip(sleeper.swapped.pages.tolist(), sleeper.modelled.pages):
                assert named.setdefault(page, modelled) is modelled, f"host page {page} is two"
        assert len({id(modelled) for modelled in named.values()}) == len(named)

    def end_everything(self) -> None:
        super().end_everything()
        while self.asleep:
            self.discard()
        while self.flights:
            self.land()
        self.bm.check_invariants()
        assert self.bm.swap.num_free_blocks == self.bm.swap.num_blocks, "host blocks are lost"


def drive(steps: int, seed: int, *, invariants: int = 1, **options: object) -> SwapDriver:
    """`steps` random operations on a fresh small manager; raises `DriverFailure`."""
    rng = random.Random(seed)
    exact = "block_hash" not in options
    num_blocks, block_size = rng.choice(SIZES)
    sizes = {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_rows": rng.choice([4, 8, 12]),
        "num_host_blocks": rng.choice(HOST_SIZES),
    }
    bm = BlockManager(**{**sizes, **options})  # type: ignore[arg-type]
    driver = SwapDriver(bm, rng, exact=exact, invariants=invariants)
    driver.run(steps)
    return driver


__all__ = ["DriverFailure", "SwapDriver", "drive"]
