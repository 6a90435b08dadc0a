"""Roofline of attention over pages: bytes and FLOPs of a call against a chip's limits.

On paper. Decoding reads every cached key and value once, so its floor is bytes over bandwidth;
prefill multiplies matrices, so its floor is FLOPs over the peak of the tensor cores (Williams et
al. 2009, "Roofline"). `docs/roofline.md` has the tables and what follows from them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    """What a data sheet says.

    bandwidth: of device memory, bytes/s. peak: dense 16-bit matrix products with float32 sums,
    FLOP/s. multiprocessors: that share both. memory: bytes.
    """

    name: str
    bandwidth: float
    peak: float
    multiprocessors: int
    memory: float


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("H200", 4.8e12, 989e12, 132, 141e9),
        Chip("H100", 3.35e12, 989e12, 132, 80e9),
        Chip("A100", 2.04e12, 312e12, 108, 80e9),
        Chip("RTX 4090", 1.01e12, 165e12, 128, 24e9),
        Chip("T4", 0.32e12, 65e12, 40, 16e9),
    )
}
# Seconds from a load to its data, about, under load; and between two kernels.
LATENCY = 0.8e-6
LAUNCH = 3e-6
# A tensor core takes 16 rows, whether they are queries or padding.
LEAST_ROWS = 16


@dataclass(frozen=True)
class Heads:
    """Attention of one layer. itemsize: bytes of a cached element; one-byte pages have a float32
    factor for each token and key head, of keys and of values.
    """

    heads: int
    kv_heads: int
    head_dim: int
    itemsize: int = 2

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's key and value."""
        factor = 4 if self.itemsize == 1 else 0
        return 2 * self.kv_heads * (self.head_dim * self.itemsize + factor)


@dataclass(frozen=True)
class Estimate:
    """Floor of one call.

    bytes: moved from and to device memory. flops: done, padding rows included.
    memory, compute: seconds each alone would take. seconds: the floor, with launches.
    busy: share of the chip's bandwidth that the programs of the launch can draw.
    """

    bytes: float
    flops: float
    memory: float
    compute: float
    busy: float
    seconds: float

    @property
    def bound(self) -> str:
        """The bound: "memory" or "compute"."""
        return "memory" if self.memory >= self.compute else "compute"


def decode(
    chip: Chip,
    shape: Heads,
    batch: int,
    context: int,
    *,
    splits: int = 1,
    page_size: int = 16,
    shared: int = 0,
) -> Estimate:
    """One query token for each of `batch` sequences of `context` cached tokens.

    shared: so many first tokens stand in the same pages and are read once (cascade).
    """
    tokens = batch * (context - shared) + shared
    queries = batch * shape.heads * shape.head_dim
    moved = tokens * shape.bytes_per_token + 2 * queries * 2 + 4 * tokens / page_size
    kernels = 1
    if splits > 1:
        # Partial results, float32, written and read again.
        moved += 2 * splits * batch * shape.heads * (shape.head_dim + 1) * 4
        kernels = 2
    rows = max(LEAST_ROWS, shape.heads // shape.kv_heads)
    flops = 4.0 * tokens * shape.kv_heads * rows * shape.head_dim
    busy = _busy(chip, batch * shape.kv_heads * splits, shape)
    return _estimate(chip, moved, flops, busy, kernels)


def prefill(chip: Chip, shape: Heads, tokens: int, cached: int = 0) -> Estimate:
    """`tokens` query tokens of one sequence behind `cached` ones, causal."""
    pairs = tokens * cached + tokens * (tokens + 1) / 2
    flops = 4.0 * pairs * shape.heads * shape.head_dim
    moved = (tokens + cached) * shape.bytes_per_token
    moved += 2 * tokens * shape.heads * shape.head_dim * 2
    return _estimate(chip, moved, flops, 1.0, 1)


def best_splits(chip: Chip, shape: Heads, batch: int, context: int) -> int:
    """The smallest power of two whose floor is within 5 % of the lowest; 64 keys each at least."""
    options = [1 << k for k in range(8) if context >> k >= 64] or [1]
    times = [decode(chip, shape, batch, context, splits=n).seconds for n in options]
    return next(n for n, time in zip(options, times, strict=True) if time <= 1.05 * min(times))


def page_overhead(page_size: int, context: int) -> float:
    """Share of the pool lost in the half-empty last page of a sequence, on average."""
    return page_size / 2 / (context + page_size / 2)


def _busy(chip: Chip, programs: int, shape: Heads) -> float:
    """Little's law: a program keeps one block of keys and values in flight for a latency, and
    bandwidth times latency must be in flight for the full bandwidth; full waves besides.
    """
    in_flight = 64 * 2 * shape.head_dim * shape.itemsize * 2
    needed = chip.bandwidth * LATENCY / in_flight
    drawn = min(1.0, programs / max(needed, chip.multiprocessors))
    waves = programs / (2 * chip.multiprocessors)
    if waves > 1:
        drawn = min(drawn, waves / -(-waves // 1))
    return drawn


def _estimate(chip: Chip, moved: float, flops: float, busy: float, kernels: int) -> Estimate:
    memory, compute = moved / (chip.bandwidth * busy), flops / chip.peak
    return Estimate(
        bytes=moved,
        flops=flops,
        memory=memory,
        compute=compute,
        busy=busy,
        seconds=max(memory, compute) + kernels * LAUNCH,
    )


def tables() -> str:
    """The tables of `docs/roofline.md`, in Markdown, for 32 heads over 8 key heads of 128."""
    shape, one_byte = Heads(32, 8, 128), Heads(32, 8, 128, itemsize=1)
    contexts = (1024, 8192, 131072)
    lines = ["Decode, µs per layer (splits), bfloat16 pages:", ""]
    lines.append("| batch × context | " + " | ".join(CHIPS) + " |")
    lines.append("| --- " * (len(CHIPS) + 1) + "|")
    for batch in (1, 16, 64, 256):
        for context in contexts:
            if batch * context > 1 << 22:
                continue
            cells = []
            for chip in CHIPS.values():
                splits = best_splits(chip, shape, batch, context)
                found = decode(chip, shape, batch, context, splits=splits)
                cells.append(f"{found.seconds * 1e6:.1f} ({splits})")
            lines.append(f"| {batch} × {context} | " + " | ".join(cells) + " |")
    lines += ["", "Decode at batch 64, context 8192, µs per layer:", ""]
    lines += ["| pages | " + " | ".join(CHIPS) + " |", "| --- " * (len(CHIPS) + 1) + "|"]
    for name, heads, shared in (
        ("bfloat16", shape, 0),
        ("one byte", one_byte, 0),
        ("bfloat16, 4096 tokens shared", shape, 4096),
    ):
        cells = []
        for chip in CHIPS.values():
            splits = best_splits(chip, heads, 64, 8192)
            found = decode(chip, heads, 64, 8192, splits=splits, shared=shared)
            cells.append(f"{found.seconds * 1e6:.1f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "Prefill of one sequence, µs per layer:", ""]
    lines += ["| tokens | " + " | ".join(CHIPS) + " |", "| --- " * (len(CHIPS) + 1) + "|"]
    for tokens in (512, 2048, 8192):
        cells = [f"{prefill(chip, shape, tokens).seconds * 1e6:.1f}" for chip in CHIPS.values()]
        lines.append(f"| {tokens} | " + " | ".join(cells) + " |")
    lines += ["", "Share of the pool lost in last pages:", ""]
    sizes = (8, 16, 32, 64, 128)
    lines += ["| context | " + " | ".join(f"page {size}" for size in sizes) + " |"]
    lines += ["| --- " * (len(sizes) + 1) + "|"]
    for context in (128, 512, 2048):
        cells = [f"{page_overhead(size, context):.1%}" for size in sizes]
        lines.append(f"| {context} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(tables(), end="")
