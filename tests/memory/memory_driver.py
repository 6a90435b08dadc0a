"""Drives a block manager at random, beside a naive model and a pretended device."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable

import numpy as np
from naive_memory import Key, NaiveMemory
from pretended_device import Device, Live, Waiting
from state_comparison import assert_alike

from paxkv.memory import BlockManager, OutOfBlocks

NUM_TOKEN_IDS = 2
SIZES = ((16, 1), (12, 2), (40, 2), (24, 3), (8, 4), (32, 4))
"""Pages, and tokens per page: small enough to be full most of the time."""
SALTS = (None, None, "a", "b")


class DriverFailure(AssertionError):
    """The block manager did something wrong, or raised."""


class MemoryDriver:
    """One block manager under test.

    Args:
        bm: a fresh manager; small, so that it is full most of the time.
        rng: where all decisions come from.
        exact: compare with the naive model; off when the block hash is broken on purpose and
            hits are fewer than they could be.
        invariants: call `check_invariants` now and then (after every `invariants` operations).
    """

    def __init__(
        self, bm: BlockManager, rng: random.Random, *, exact: bool = True, invariants: int = 1
    ) -> None:
        self.bm = bm
        self.rng = rng
        self.exact = exact
        self.invariants = invariants
        self.model = NaiveMemory(bm.num_blocks, bm.block_size, len(bm.num_tokens))
        self.live: dict[int, Live] = {}
        self.waiting: list[Waiting] = []
        self.history: list[list[int]] = [[1, 2, 0, 1, 2, 0, 1, 1, 2]]
        self.device = Device(
            np.zeros_like(bm.tables), np.zeros((bm.num_blocks + 1, bm.block_size), np.int64)
        )
        self.keys: dict[Hashable, Key] = {}
        self.weights = 0
        self.done: Counter[str] = Counter()
        self.seldom = [self.reset]
        self.operations: list[tuple[int, Callable[[], None]]] = [
            (5, self.admit_new),
            (3, self.admit_waiting),
            (12, self.decode),
            (4, self.continue_prefill),
            (6, self.fork),
            (3, self.reorder),
            (2, self.fork_blocks),
            (4, self.end),
            (2, self.preempt),
            (10, self.step),
            (2, self.leave_early),
        ]

    # Running

    def run(self, steps: int) -> None:
        weights = [weight for weight, _ in self.operations]
        calls = [call for _, call in self.operations]
        for number in range(steps):
            (call,) = self.rng.choices(calls, weights)
            if self.rng.random() < 0.003:
                call = self.rng.choice(self.seldom)
            try:
                call()
                if self.invariants and number % self.invariants == 0:
                    self.check()
            except Exception as error:
                raise DriverFailure(f"operation {number}, {call.__name__}: {error}") from error
            self.done[call.__name__] += 1
        try:
            self.end_everything()
        except Exception as error:
            raise DriverFailure(f"at the end: {error}") from error

    def check(self) -> None:
        self.bm.check_invariants()
        if self.exact:
            self.compare()

    def compare(self) -> None:
        assert_alike(self.bm, self.model, self.keys)

    # Operations

    def some_tokens(self) -> list[int]:
        """A prompt that often shares a beginning with an earlier one."""
        old = self.rng.choice(self.history)
        tokens = old[: self.rng.randint(0, len(old))]
        tokens = tokens + [self.rng.randrange(NUM_TOKEN_IDS) for _ in range(self.rng.randint(0, 6))]
        tokens = tokens[: self.bm.max_tokens_per_row] or [1]
        self.history = [*self.history[-20:], tokens]
        return list(tokens)

    def admit_new(self) -> None:
        salt = self.rng.choice(SALTS)
        tokens = self.some_tokens()
        chain = self.bm.chain(salt=salt) if self.rng.random() < 0.5 else None
        self.allocate(Waiting(tokens, salt, len(tokens), chain), resumed=False)

    def admit_waiting(self) -> None:
        if self.waiting:
            self.allocate(self.waiting.pop(0), resumed=True)

    def allocate(self, request: Waiting, *, resumed: bool) -> None:
        chunk = self.rng.choice([None, 1, 2, 5])
        headroom = self.rng.choice([0, 0, 1, 3])
        use_cache, cache_blocks = self.rng.random() < 0.9, self.rng.random() < 0.9
        before = self.bm.snapshot()
        allocation = self.bm.allocate(
            request.tokens,
            chain=request.chain,
            salt=request.salt if request.chain is None else None,
            first_chunk=chunk,
            headroom=headroom,
            use_cache=use_cache,
            cache_blocks=cache_blocks,
            resumed=resumed,
        )
        root = request.salt, self.weights
        expected = None
        if self.exact:
            expected = self.model.allocate(
                root, request.tokens, chunk, headroom, use_cache, cache_blocks
            )
        if allocation is None:
            assert not self.exact or expected is None, "an allocation was refused"
            assert self.bm.snapshot() == before, "a refused allocation left traces"
            self.waiting.append(request)
            self.done["refused"] += 1
            return
        row, cached, new = (
            allocation.row,
            allocation.num_cached_tokens,
            allocation.num_new_tokens,
        )
        assert not self.exact or expected == (row, cached), f"{allocation}, not {expected}"
        assert new >= 1
        assert cached + new <= len(request.tokens)
        self.done["hits" if cached else "misses"] += 1
        live = Live(
            request.tokens,
            request.salt,
            self.weights,
            cached + new,
            cached,
            request.prompt,
            request.chain,
        )
        self.live[row] = live
        self.cache_blocks(row, min(live.granted, live.prompt))

    def cache_blocks(self, row: int, num_tokens: int) -> None:
        tokens = self.live[row].tokens
        entered = self.bm.cache_blocks(row, tokens, num_tokens)
        if self.exact:
            assert entered == self.model.cache_blocks(row, tokens, num_tokens)

    def rows(self, accept: Callable[[Live], bool]) -> list[int]:
        return [row for row, live in self.live.items() if accept(live)]

    def decode(self) -> None:
        """One more token for some of the rows that have all their tokens computed."""
        limit = self.bm.max_tokens_per_row
        able = self.rows(lambda s: s.computed == s.granted == len(s.tokens) < limit)
        batch = [row for row in able if self.rng.random() < 0.8]
        self.rng.shuffle(batch)
        if batch and self.append(batch, [1] * len(batch)):
            for row in batch:
                self.live[row].tokens.append(self.rng.randrange(NUM_TOKEN_IDS))

    def continue_prefill(self) -> None:
        rows = self.rows(lambda s: s.granted < len(s.tokens))
        counts = [
            self.rng.randint(1, len(self.live[row].tokens) - self.live[row].granted) for row in rows
        ]
        if rows and self.append(rows, counts):
            for row in rows:
                live = self.live[row]
                self.cache_blocks(row, min(live.granted, live.prompt))

    def append(self, rows: list[int], counts: list[int]) -> bool:
        needed = self.bm.blocks_needed(rows, counts)
        before = self.bm.num_free_blocks
        expected = self.model.append(rows, counts) if self.exact else needed
        if needed > before:
            assert not self.exact or expected is None, "an append was refused"
            assert not self.bm.can_append(rows, counts)
            assert len(rows) > 1 or self.bm.room(rows[0]) < counts[0]
            state = self.bm.snapshot()
            try:
                self.bm.append_batch(rows, counts)
            except OutOfBlocks:
                assert self.bm.snapshot() == state, "a refused append left traces"
                self.done["refused appends"] += 1
                return False
            raise AssertionError("an append that cannot be done was done")
        assert self.bm.can_append(rows, counts)
        if len(rows) == 1:
            assert self.bm.room(rows[0]) >= counts[0]
            growth = self.bm.append(rows[0], counts[0])
            taken = len(growth.pages) + (growth.copy is not None)
        else:
            taken = self.bm.append_batch(rows, counts)
        assert expected == taken == needed, f"{taken} pages taken, not {expected}"
        assert self.bm.num_free_blocks == before - needed
        for row, count in zip(rows, counts):
            self.live[row].granted += count
        return True

    def fork(self) -> None:
        rows = self.rows(lambda s: s.computed == s.granted)
        if not rows:
            return
        source, count = self.rng.choice(rows), self.rng.randint(1, 3)
        before = self.bm.snapshot()
        targets = self.bm.fork(source, count)
        if targets is None:
            assert len(self.live) + count > len(self.bm.num_tokens)
            assert self.bm.snapshot() == before
            return
        self.became([source] * count, targets.tolist())

    def fork_blocks(self) -> None:
        """A row that shares some full blocks and computes the rest itself, like a beam that comes
        back after preemption."""
        size = self.bm.block_size
        rows = self.rows(lambda s: s.computed == s.granted >= size)
        if not rows:
            return
        source = self.rng.choice(rows)
        old = self.live[source]
        count = self.rng.randint(1, old.computed // size)
        before = self.bm.snapshot()
        row = self.bm.fork_blocks(source, count)
        if row is None:
            assert len(self.live) == len(self.bm.num_tokens)
            assert self.bm.snapshot() == before
            return
        if self.exact:
            self.model.fork_blocks(source, row, count)
        self.live[row] = Live(
            list(old.tokens), old.salt, old.weights, count * size, count * size, old.prompt, None
        )

    def reorder(self) -> None:
        """Rows permuted, duplicated and dropped in one call, as beam search does."""
        rows = self.rows(lambda s: s.computed == s.granted)
        spare = [row for row in range(len(self.bm.num_tokens)) if row not in self.live]
        targets = rows + spare[: self.rng.randint(0, 1)]
        targets = self.rng.sample(targets, self.rng.randint(0, len(targets)))
        if rows and targets:
            sources = [self.rng.choice(rows) for _ in targets]
            self.bm.fork_rows(sources, targets)
            self.became(sources, targets)

    def became(self, sources: list[int], targets: list[int]) -> None:
        if self.exact:
            self.model.fork(sources, targets)
        read = [self.live[row] for row in sources]
        for source, row, old in zip(sources, targets, read):
            self.live[row] = Live(
                list(old.tokens),
                old.salt,
                old.weights,
                old.granted,
                old.computed,
                old.prompt,
                old.chain if source == row else None,
            )

    def end(self) -> None:
        self.free(self.rng.sample(sorted(self.live), min(len(self.live), self.rng.randint(1, 3))))

    def preempt(self) -> None:
        if self.live:
            for live in self.free([self.rng.choice(sorted(self.live))]):
                if live.weights == self.weights and len(self.waiting) < 6:
                    self.waiting.append(Waiting(live.tokens, live.salt, live.prompt, live.chain))

    def leave_early(self) -> None:
        """Somebody goes in the very step that copies a page they share."""
        self.fork()
        self.decode()
        self.preempt()

    def free(self, rows: list[int]) -> list[Live]:
        """Free rows, and those that rely on what they have not computed."""
        rows = list(rows)
        for row in rows:
            live = self.live[row]
            if live.computed < live.granted:
                sharing = self.bm.withdraw(row, live.computed).tolist()
                if self.exact:
                    assert sharing == self.model.withdraw(row, live.computed)
                self.done["withdrawn"] += 1
                rows += [other for other in sharing if other not in rows]
        if len(rows) == 1:
            self.bm.free(rows[0])
        else:
            self.bm.free_rows(rows)
        if self.exact:
            self.model.release(rows)
        return [self.live.pop(row) for row in rows]

    def reset(self) -> None:
        if self.rng.random() < 0.5:
            self.weights += 1
            self.bm.reset_prefix_cache(weights_version=self.weights)
        else:
            self.bm.reset_prefix_cache()
        self.model.reset()

    def step(self) -> None:
        """What the device does: patch, copy, write; then every row must read its own KV."""
        self.device.patch(self.bm)
        self.move()
        self.device.compute(self.bm, self.live)
        for row, live in self.live.items():
            if self.rng.random() < 0.9:
                self.cache_blocks(row, live.computed)

    def move(self) -> None:
        """Contents that change place before anything is written."""
        self.model.copies.clear()
        self.done["copies"] += self.device.copy(self.bm)

    def end_everything(self) -> None:
        self.step()
        self.free(sorted(self.live))
        self.bm.check_invariants()
        assert self.bm.num_free_blocks == self.bm.num_blocks, "blocks are lost"
