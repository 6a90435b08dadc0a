"""Shape and size of the pages, and their allocation."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.contract import STANDARD, KVLayout
from paxkv.models.config import ModelConfig

# Of each layer the keys, the values and, if they are quantized, the factors of both.
Pages = tuple[tuple[jax.Array, ...], ...]
FACTOR = np.dtype(np.float32)


@dataclass(frozen=True)
class PageLayout:
    """Per layer a key and a value array of `[num_pages, num_kv_heads, block_size, head_dim]`; of
    one-byte types also the factors of both, float32 `[num_pages, block_size, num_kv_heads]`.

    kv_layout: how the attention kernels want the axes of keys and values to lie.
    """

    num_layers: int
    num_kv_heads: int
    block_size: int
    head_dim: int
    dtype: np.dtype
    kv_layout: KVLayout = STANDARD

    @classmethod
    def of(
        cls, config: ModelConfig, block_size: int, dtype: np.dtype, kv_layout: KVLayout = STANDARD
    ) -> PageLayout:
        heads, dim = config.num_kv_heads, config.head_dim
        return cls(config.num_layers, heads, block_size, dim, dtype, kv_layout)

    @property
    def quantized(self) -> bool:
        return np.dtype(self.dtype).itemsize == 1

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token's keys and values take in all layers, factors included."""
        per_head = self.head_dim * np.dtype(self.dtype).itemsize
        per_head += FACTOR.itemsize if self.quantized else 0
        return 2 * self.num_layers * self.num_kv_heads * per_head

    @property
    def bytes_per_page(self) -> int:
        return self.bytes_per_token * self.block_size

    def arrays(self, num_pages: int) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Description of one layer's keys and values, and of their factors if there are any."""
        sizes = (num_pages, self.num_kv_heads, self.block_size, self.head_dim)
        found = [jax.ShapeDtypeStruct(shape, self.dtype) for shape in self.kv_layout.shapes(*sizes)]
        if self.quantized:
            factors = (num_pages, self.block_size, self.num_kv_heads)
            found += [jax.ShapeDtypeStruct(factors, FACTOR)] * 2
        return tuple(found)


def allocate(layout: PageLayout, num_pages: int) -> Pages:
    """Zeroed pages: padding and masked slots are read, so they must hold finite numbers."""
    arrays = layout.arrays(num_pages)
    return tuple(
        tuple(jnp.zeros(array.shape, array.dtype) for array in arrays)
        for _ in range(layout.num_layers)
    )


def grid_down(num_pages: int) -> int:
    """The largest of 4, 5, 6, 7 times a power of two that is not above `num_pages`.

    The number of pages is a shape: on a coarse grid, a start with a little less free memory
    meets the programs compiled before.
    """
    if num_pages < 4:
        return num_pages
    step = 1 << (num_pages.bit_length() - 3)
    return num_pages // step * step


def grid_up(num_pages: int) -> int:
    """The smallest grid point (see `grid_down`) that is not below `num_pages`."""
    down = grid_down(num_pages)
    return down if down == num_pages else down + (1 << (num_pages.bit_length() - 3))
