"""Swap space on a blackboard: the naive memory with pages in a second place."""

from __future__ import annotations

from dataclasses import dataclass, field

from naive_memory import NaiveMemory, Page, Sequence


@dataclass(eq=False)
class HostPage:
    refs: int = 1
    landed: bool = False


@dataclass(eq=False)
class Asleep:
    """A sequence in host memory; `publishes` and the rest as in `Sequence`."""

    root: object
    pages: list[HostPage]
    granted: int
    cached: int
    publishes: bool


@dataclass(eq=False)
class NaiveSwap(NaiveMemory):
    num_host_blocks: int = 0
    asleep: list[Asleep] = field(default_factory=list)
    unwanted: list[HostPage] = field(default_factory=list)
    pairs: list[tuple[Page, HostPage]] = field(default_factory=list)
    arriving: list[Page] = field(default_factory=list)
    moved_out: int = 0
    moved_in: int = 0

    @property
    def host_used(self) -> int:
        return len({id(page) for sequence in self.asleep for page in sequence.pages})

    @property
    def host_free(self) -> int:
        return self.num_host_blocks - self.host_used - len(self.unwanted)

    def host_twin(self, page: Page) -> HostPage | None:
        return next((host for device, host in self.pairs if device is page), None)

    def device_twin(self, host: HostPage) -> Page | None:
        page = next((device for device, other in self.pairs if other is host), None)
        return page if page is not None and self._alive(page) else None

    @property
    def num_arriving(self) -> int:
        return sum(self._alive(page) for page in self.arriving)

    def _alive(self, page: Page) -> bool:
        return page.refs > 0 or page in self.evictable

    def _part(self, *pages: Page | HostPage) -> None:
        self.pairs = [
            pair for pair in self.pairs if not any(one is page for one in pair for page in pages)
        ]

    def swap_out(self, row: int) -> Asleep | None:
        sequence = self.rows[row]
        alone = [page for page in sequence.pages if self.host_twin(page) is None]
        if len(alone) > self.host_free or not self.num_host_blocks:
            return None
        hosts = []
        for page in sequence.pages:
            host = self.host_twin(page)
            if host is None:
                host = HostPage()
                self.pairs.append((page, host))
                self.moved_out += 1
            else:
                host.refs += 1
            hosts.append(host)
        asleep = Asleep(sequence.root, hosts, sequence.granted, sequence.cached, sequence.publishes)
        self.asleep.append(asleep)
        self.release([row])
        return asleep

    def swap_in(
        self, asleep: Asleep, tokens: list[int], num_tokens: int, headroom: int
    ) -> int | None:
        """The row, or None."""
        found: list[Page | None] = []
        for column, host in enumerate(asleep.pages):
            page = None
            if (column + 1) * self.block_size <= asleep.granted:
                page = self.device_twin(host)
                if page is None and asleep.publishes and column < asleep.cached:
                    page = self.cached.get(self.key(asleep.root, tokens, column))
            found.append(page)
        total = self.blocks(asleep.granted + num_tokens)
        missing = total - sum(page is not None for page in found)
        room = self.free - sum(page is not None and page.refs == 0 for page in found)
        row = next((row for row in range(self.max_rows) if row not in self.rows), None)
        absent = [host for host, page in zip(asleep.pages, found) if page is None]
        if row is None or missing + headroom > room or not all(host.landed for host in absent):
            return None
        for page in found:
            if page is not None:
                if page.refs == 0:
                    self.evictable.remove(page)
                page.refs += 1
        pages = [page or self._new_page() for page in found]
        for column, (host, page) in enumerate(zip(asleep.pages, pages)):
            if found[column] is None:
                self.arriving.append(page)
                self.moved_in += 1
            if (column + 1) * self.block_size <= asleep.granted:
                if self.device_twin(host) is not page:
                    self._part(host)
                if self.host_twin(page) is None:
                    self._part(host)
                    self.pairs.append((page, host))
        pages += [self._new_page() for _ in range(total - len(pages))]
        self.rows[row] = Sequence(
            asleep.root, pages, asleep.granted + num_tokens, 0, 0, asleep.publishes
        )
        self.discard(asleep)
        return row

    def discard(self, asleep: Asleep) -> None:
        self.asleep.remove(asleep)
        for host in asleep.pages:
            host.refs -= 1
            if host.refs == 0:
                self._part(host)
                if not host.landed:
                    self.unwanted.append(host)

    def land(self, hosts: list[HostPage]) -> None:
        for host in hosts:
            host.landed = True
        self.unwanted = [host for host in self.unwanted if not host.landed]

    def drop_all(self) -> None:
        self.asleep.clear()
        self.unwanted.clear()
        self.pairs.clear()
        self.arriving.clear()

    def append(self, rows: list[int], counts: list[int]) -> int | None:
        tails = [
            (row, self.rows[row].pages[-1], len(self.rows[row].pages) - 1)
            for row in rows
            if self.rows[row].granted % self.block_size
        ]
        needed = super().append(rows, counts)
        if needed is not None:
            written = [page for row, page, column in tails if self.rows[row].pages[column] is page]
            self._part(*written)
        return needed

    def _undo_copy(self, source: Page, target: Page) -> None:
        super()._undo_copy(source, target)
        self._part(source, target)

    def reset(self) -> None:
        super().reset()
        for asleep in self.asleep:
            asleep.publishes = False
