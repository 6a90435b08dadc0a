"""The few shapes a step can have."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

MOST_DECODE = 8
MOST_MIXED = 4
MOST_SAMPLE = 8
SMALLEST_MIXED = 16
SMALL_MIXED = 256


@dataclass(frozen=True)
class Buckets:
    """Sizes of the programs, ascending; the last of each is the limit itself.

    decode: sequences of a step in which each advances by one token. mixed: tokens of any other
    step, which has room for every sequence. sample: rows sampled. At most 8, 4 and 8.
    """

    decode: tuple[int, ...]
    mixed: tuple[int, ...]
    sample: tuple[int, ...]

    @classmethod
    def choose(cls, max_num_seqs: int, max_num_batched_tokens: int) -> Buckets:
        decode = _decode(max_num_seqs)
        return cls(decode, _mixed(max_num_batched_tokens), _sample(max_num_seqs))

    @classmethod
    def single(cls, max_num_seqs: int, max_num_batched_tokens: int) -> Buckets:
        """One shape for every step."""
        return cls((), (max_num_batched_tokens,), (max_num_seqs,))

    def tokens_of_step(self, wanted: int, decoding: int) -> int:
        """The number of the `wanted` tokens that a step with prompts should compute at most.

        All of them, or as many as the next smaller size holds if that size and the one for the
        rest are together the smaller program. A step more is taken to cost half of the smallest
        size, and two tokens for each sequence that decodes, and so is wanted again: its attention
        and its sample.
        """
        index = bisect_left(self.mixed[:-1], wanted)
        size, below = self.mixed[index], self.mixed[max(0, index - 1)]
        rest = wanted - below + decoding
        if rest > below:
            return size
        more = self.mixed[0] // 2 + 2 * decoding
        return below if below + padded(self.mixed, rest) + more < size else size


def padded(sizes: tuple[int, ...], count: int) -> int:
    """The smallest of `sizes` that holds `count`."""
    return sizes[bisect_left(sizes, count)]


def _decode(limit: int) -> tuple[int, ...]:
    """Powers of two, with sizes halfway between the largest of them while there is room; small
    sizes, which cost only the reading of the weights, are dropped first.
    """
    sizes = {1 << power for power in range(limit.bit_length()) if 1 << power <= limit} | {limit}
    if len(sizes) >= MOST_DECODE - 1:
        sizes.discard(2)
    halfway = sorted((size // 2 * 3 for size in sizes if size >= 8), reverse=True)
    sizes |= set([size for size in halfway if size < limit][: max(0, MOST_DECODE - len(sizes))])
    while len(sizes) > MOST_DECODE:
        sizes.remove(sorted(sizes)[1])
    return tuple(sorted(sizes))


def _sample(limit: int) -> tuple[int, ...]:
    """The limit and halves of it down to 16, then quarters: few, since each compiles slowly."""
    sizes = [limit]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // (2 if sizes[-1] > 16 else 4) or 1)
    return tuple(reversed(sizes[:MOST_SAMPLE]))


def _mixed(limit: int) -> tuple[int, ...]:
    """The limit and smaller sizes in steps of one power of two, down to where a step costs only
    the reading of the weights.
    """
    ratio = 2
    while limit // ratio ** (MOST_MIXED - 1) > SMALL_MIXED:
        ratio *= 2
    sizes = (limit // ratio**power for power in range(MOST_MIXED))
    return tuple(sorted({size for size in sizes if size >= SMALLEST_MIXED} | {limit}))
