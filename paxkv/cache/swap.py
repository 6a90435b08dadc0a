"""Pages in host memory, and the programs that carry them there and back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from paxkv.cache.pages import PageLayout, Pages

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


def gather_pages(pages: Pages, ids: jax.Array) -> jax.Array:
    """What pages `ids [n]` hold: `[n, num_layers, 2, elements]`, keys before values."""
    flat = [[array[ids].reshape(len(ids), -1) for array in pair] for pair in pages]
    return jnp.stack([jnp.stack(pair, axis=1) for pair in flat], axis=1)


def scatter_pages(pages: Pages, content: jax.Array, ids: jax.Array, first: jax.Array) -> Pages:
    """The reverse, for layers `first` and on; means to be jitted with `pages` donated.

    pages: of those layers. content: `[n, num_layers, 2, elements]`, zeros for the padding, whose
    id is 0.
    """
    part = lax.dynamic_slice_in_dim(content, first, len(pages), axis=1)

    def put(array: jax.Array, content: jax.Array) -> jax.Array:
        content = content.reshape(len(ids), *array.shape[1:])
        return array.at[ids].set(content, mode="promise_in_bounds")

    return tuple(
        (put(k, part[:, layer, 0]), put(v, part[:, layer, 1])) for layer, (k, v) in enumerate(pages)
    )


class HostPages:
    """A numpy pool, `[num_blocks + 1, num_layers, 2, elements of a page]`; page 0 is not used.

    Its memory is claimed by the operating system as pages are first written.
    """

    def __init__(self, layout: PageLayout, num_blocks: int) -> None:
        elements = layout.num_kv_heads * layout.block_size * layout.head_dim
        self._pages = np.empty((num_blocks + 1, layout.num_layers, 2, elements), layout.dtype)

    def write(self, ids: np.ndarray, content: np.ndarray) -> None:
        """Store the first `len(ids)` pages of `content`."""
        self._pages[ids] = content[: len(ids)]

    def read(self, ids: np.ndarray, size: int) -> np.ndarray:
        """A copy of pages `ids`, padded to `size` with zeros."""
        content = np.zeros((size, *self._pages.shape[1:]), self._pages.dtype)
        np.take(self._pages, ids, axis=0, out=content[: len(ids)])
        return content
