"""A block manager as one would write it on a blackboard: lists, dictionaries, objects, loops.

It shares no code and no numbering with `paxkv.memory`; pages are objects. It says what must come
of every call, down to the order of eviction.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Key = tuple[object, tuple[int, ...]]
"""Everything the KV of a full block depends on: root, and all tokens up to the block's end."""


@dataclass(eq=False)
class Page:
    refs: int = 0
    key: Key | None = None


@dataclass(eq=False)
class Sequence:
    root: object
    pages: list[Page]
    granted: int
    hits: int
    cached: int
    publishes: bool


@dataclass(eq=False)
class NaiveMemory:
    num_blocks: int
    block_size: int
    max_rows: int
    num_free: int = 0
    rows: dict[int, Sequence] = field(default_factory=dict)
    cached: dict[Key, Page] = field(default_factory=dict)
    evictable: list[Page] = field(default_factory=list)
    copies: list[tuple[Page, Page]] = field(default_factory=list)
    num_copies: int = 0
    num_evictions: int = 0

    def __post_init__(self) -> None:
        self.num_free = self.num_blocks

    @property
    def free(self) -> int:
        return self.num_free + len(self.evictable)

    def blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def key(self, root: object, tokens: list[int], column: int) -> Key:
        return root, tuple(tokens[: (column + 1) * self.block_size])

    def _new_page(self) -> Page:
        if self.num_free:
            self.num_free -= 1
        else:
            oldest = self.evictable.pop(0)
            assert oldest.key is not None
            del self.cached[oldest.key]
            self.num_evictions += 1
        return Page(refs=1)

    def allocate(
        self,
        root: object,
        tokens: list[int],
        first_chunk: int | None,
        headroom: int,
        use_cache: bool,
        cache_blocks: bool,
    ) -> tuple[int, int] | None:
        """The row and the number of cached tokens, or None."""
        hits: list[Page] = []
        while use_cache and (len(hits) + 1) * self.block_size < len(tokens):
            page = self.cached.get(self.key(root, tokens, len(hits)))
            if page is None:
                break
            hits.append(page)
        cached = len(hits) * self.block_size
        granted = len(tokens) if first_chunk is None else min(len(tokens), cached + first_chunk)
        room = self.free - sum(page.refs == 0 for page in hits)
        row = next((row for row in range(self.max_rows) if row not in self.rows), None)
        if row is None or self.blocks(granted) - len(hits) + headroom > room:
            return None
        for page in hits:
            if page.refs == 0:
                self.evictable.remove(page)
            page.refs += 1
        fresh = [self._new_page() for _ in range(self.blocks(granted) - len(hits))]
        self.rows[row] = Sequence(root, hits + fresh, granted, len(hits), len(hits), cache_blocks)
        return row, cached

    def append(self, rows: list[int], counts: list[int]) -> int | None:
        """Pages taken, or None if there are not enough."""
        copying: list[int] = []
        writers: dict[int, int] = {}
        needed = 0
        for row, count in zip(rows, counts):
            sequence = self.rows[row]
            needed += self.blocks(sequence.granted + count) - len(sequence.pages)
            tail = sequence.pages[-1]
            if sequence.granted % self.block_size and tail.refs - writers.get(id(tail), 0) > 1:
                writers[id(tail)] = writers.get(id(tail), 0) + 1
                copying.append(row)
        needed += len(copying)
        if needed > self.free:
            return None
        for row in copying:
            sequence = self.rows[row]
            old, new = sequence.pages[-1], self._new_page()
            old.refs -= 1
            sequence.pages[-1] = new
            origin = next((source for source, target in self.copies if target is old), old)
            self.copies.append((origin, new))
            self.num_copies += 1
        for row, count in zip(rows, counts):
            sequence = self.rows[row]
            sequence.granted += count
            while len(sequence.pages) < self.blocks(sequence.granted):
                sequence.pages.append(self._new_page())
        return needed

    def fork(self, sources: list[int], targets: list[int]) -> None:
        read = [self.rows[row] for row in sources]
        lost = [self.rows[row] for row in targets if row in self.rows]
        for sequence in read:
            for page in sequence.pages:
                page.refs += 1
        for row, old in zip(targets, read):
            self.rows[row] = Sequence(
                old.root, list(old.pages), old.granted, old.hits, old.cached, old.publishes
            )
        self._let_go(lost)

    def fork_blocks(self, source: int, row: int, count: int) -> None:
        old = self.rows[source]
        for page in old.pages[:count]:
            page.refs += 1
        self.rows[row] = Sequence(
            old.root,
            old.pages[:count],
            count * self.block_size,
            min(old.hits, count),
            min(old.cached, count),
            old.publishes,
        )

    def release(self, rows: list[int]) -> None:
        self._let_go([self.rows.pop(row) for row in rows])

    def _let_go(self, sequences: list[Sequence]) -> None:
        mentions = [
            (column, page) for sequence in sequences for column, page in enumerate(sequence.pages)
        ]
        for _, page in mentions:
            page.refs -= 1
        idle: list[Page] = []
        for _, page in sorted(mentions, key=lambda mention: -mention[0]):
            if page.refs == 0 and page not in idle:
                idle.append(page)
        for page in idle:
            self._cancel_copies_into(page)
        for page in list(idle):
            targets = [target for source, target in self.copies if source is page]
            if targets:
                held = [held for row in sorted(self.rows) for held in self.rows[row].pages]
                target = next(held for held in held if held in targets)
                idle[idle.index(page)] = target
                self._undo_copy(page, target)
        for page in idle:
            if page.key is None:
                self.num_free += 1
            else:
                self.evictable.append(page)

    def _cancel_copies_into(self, page: Page) -> None:
        kept = [(source, target) for source, target in self.copies if target is not page]
        self.num_copies -= len(self.copies) - len(kept)
        self.copies = kept

    def _undo_copy(self, source: Page, target: Page) -> None:
        self._cancel_copies_into(target)
        for page in (source, target):
            self._forget(page)
        for sequence in self.rows.values():
            sequence.pages = [source if page is target else page for page in sequence.pages]
        source.refs, target.refs = target.refs, 0

    def _forget(self, page: Page) -> None:
        if page.key is not None:
            del self.cached[page.key]
            page.key = None

    def cache_blocks(self, row: int, tokens: list[int], num_tokens: int) -> int:
        sequence = self.rows[row]
        entered = 0
        if sequence.publishes:
            for column in range(sequence.cached, num_tokens // self.block_size):
                key = self.key(sequence.root, tokens, column)
                if key not in self.cached:
                    self.cached[key] = sequence.pages[column]
                    sequence.pages[column].key = key
                    entered += 1
                sequence.cached = column + 1
        return entered

    def withdraw(self, row: int, num_tokens: int) -> list[int]:
        sequence = self.rows[row]
        first = max(sequence.hits, num_tokens // self.block_size)
        taken = sequence.pages[first : sequence.cached]
        sequence.cached = min(sequence.cached, max(first, 0))
        for page in taken:
            if page.key:
                self._forget(page)
        return [
            other
            for other in sorted(self.rows)
            if other != row and any(page in taken for page in self.rows[other].pages)
        ]

    def reset(self) -> None:
        self.cached.clear()
        self.num_free += len(self.evictable)
        for page in self.evictable:
            page.key = None
        self.evictable.clear()
        for sequence in self.rows.values():
            sequence.publishes = False
            for page in sequence.pages:
                page.key = None
