"""Pages in host memory, and the programs that move them there and back."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from paxkv.cache.pages import PageLayout, Pages

# `[n, num_layers, 2, elements]`, keys before values; and their factors likewise, if there are any.
Content = tuple[jax.Array, ...]

CHUNK_BYTES = 16 << 20
MOST_PAGES = 64


def chunk_sizes(layout: PageLayout) -> tuple[int, int]:
    """Pages that one program moves: a few, and about 16 MiB of them."""
    fitting = max(1, min(MOST_PAGES, CHUNK_BYTES // layout.bytes_per_page))
    large = 1 << (fitting.bit_length() - 1)
    return max(1, large // 8), large


def chunks(sizes: tuple[int, int], count: int) -> list[int]:
    """Chunk sizes that together hold `count` pages, all full but the last."""
    small, large = sizes
    found = [large] * (count // large)
    left = count % large
    return [*found, large] if left > large // 2 else [*found, *[small] * -(-left // small)]


def gather_pages(pages: Pages, ids: jax.Array) -> Content:
    """Gather the contents of pages `ids [n]`."""
    flat = [[array[ids].reshape(len(ids), -1) for array in layer] for layer in pages]

    def stacked(start: int) -> jax.Array:
        pairs = [jnp.stack(layer[start : start + 2], axis=1) for layer in flat]
        return jnp.stack(pairs, axis=1)

    return tuple(stacked(start) for start in range(0, len(flat[0]), 2))


def scatter_pages(pages: Pages, content: Content, ids: jax.Array, first: jax.Array) -> Pages:
    """Scatter `gather_pages`' result, for layers from `first` on; jit it with `pages` donated.

    pages: of those layers. content: zeros for the padding, whose id is 0.
    """
    parts = [lax.dynamic_slice_in_dim(x, first, len(pages), axis=1) for x in content]

    def put(array: jax.Array, content: jax.Array) -> jax.Array:
        content = content.reshape(len(ids), *array.shape[1:])
        return array.at[ids].set(content, mode="promise_in_bounds")

    return tuple(
        tuple(put(x, parts[i // 2][:, layer, i % 2]) for i, x in enumerate(arrays))
        for layer, arrays in enumerate(pages)
    )


class HostPages:
    """Numpy pools, `[num_blocks + 1, num_layers, 2, elements of a page]`; page 0 is not used.

    Their memory is claimed by the operating system as pages are first written.
    """

    def __init__(self, layout: PageLayout, num_blocks: int) -> None:
        # Keys and values are of one size; so are their factors.
        kinds = layout.arrays(1)[::2]
        self._pools = [
            np.empty((num_blocks + 1, layout.num_layers, 2, math.prod(kind.shape)), kind.dtype)
            for kind in kinds
        ]

    def write(self, ids: np.ndarray, content: Content) -> None:
        """Store the first `len(ids)` pages of `content`."""
        for pool, arrived in zip(self._pools, content, strict=True):
            pool[ids] = np.asarray(arrived)[: len(ids)]

    def read(self, ids: np.ndarray, size: int) -> tuple[np.ndarray, ...]:
        """A copy of pages `ids`, padded to `size` with zeros."""
        found = []
        for pool in self._pools:
            content = np.zeros((size, *pool.shape[1:]), pool.dtype)
            np.take(pool, ids, axis=0, out=content[: len(ids)])
            found.append(content)
        return tuple(found)
