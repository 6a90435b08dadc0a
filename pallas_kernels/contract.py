"""The seam between callers and back ends: the arrays, the options, and what a back end exports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax

from pallas_kernels.dispatch import Call

Array = jax.Array


@dataclass(frozen=True)
class KVLayout:
    """How the axes of the pages lie.

    Attributes:
        transposed_keys: key pages are `[num_pages, num_kv_heads, head_dim, page_size]`, the last
            two axes exchanged. Value pages never are.
    """

    transposed_keys: bool = False

    def shapes(
        self, num_pages: int, num_kv_heads: int, page_size: int, head_dim: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the key pages and of the value pages."""
        values = (num_pages, num_kv_heads, page_size, head_dim)
        keys = (num_pages, num_kv_heads, head_dim, page_size)
        return (keys if self.transposed_keys else values), values


# What the public functions take, and kernels of one's own.
STANDARD = KVLayout()


class AttentionInputs(NamedTuple):
    """The arrays of one call, shaped as `pallas_kernels.ragged_paged_attention` has them.

    A layer has its own queries, pages, factors and sinks; block tables and lengths are the step's,
    and so is `prepared`, what the back end's `prepare` made of them for these options. None lets
    the back end prepare by itself.
    """

    q: Array
    k_pages: Array
    v_pages: Array
    block_tables: Array
    kv_lens: Array
    query_start: Array
    k_scale: Array | None = None
    v_scale: Array | None = None
    sinks: Array | None = None
    prepared: Any = None


@dataclass(frozen=True)
class AttentionOptions:
    """What is static about a call besides its shapes. A wrong value is a ValueError.

    Attributes:
        scale: factor on the scores.
        window, softcap, return_lse: as in `pallas_kernels.ragged_paged_attention`.
        batch_invariant: a sequence must get the same bits whatever else is in the batch.
        layout: of the pages: the standard one or the back end's own.
        config: the back end's `Config`; None lets it choose from the shapes.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    return_lse: bool = False
    batch_invariant: bool = False
    layout: KVLayout = STANDARD
    config: Any = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"window={self.window} must be at least 1 position")
        if self.softcap is not None and not self.softcap > 0:
            raise ValueError(f"softcap={self.softcap} must be above 0")


class Backend(Protocol):
    """A module, or an object, that computes the contract.

    It may also export `cascade_attention(inputs, shared_len, options)`, if it reads a prefix that
    all sequences share only once.

    Attributes:
        Config: type of its tuning.
        page_layout: how it wants the pages of an engine to lie; it takes the standard layout too.
    """

    @property
    def Config(self) -> Any: ...

    @property
    def page_layout(self) -> KVLayout: ...

    def check(self, call: Call) -> None:
        """Raise NotImplementedError, with a sentence, for a call that it does not cover."""

    def prepare(
        self,
        block_tables: Array,
        kv_lens: Array,
        query_start: Array,
        num_tokens: int,
        page_size: int,
        options: AttentionOptions,
    ) -> Any:
        """Work out what all layers of a step with the same options have in common.

        Returns a tree of arrays, possibly empty, which `jax.export` can write down.
        """

    def attention(
        self, inputs: AttentionInputs, options: AttentionOptions
    ) -> Array | tuple[Array, Array]:
        """See `pallas_kernels.ragged_paged_attention`."""
        ...

    def write_kv(
        self,
        k_pages: Array,
        v_pages: Array,
        k: Array,
        v: Array,
        slot_mapping: Array,
        k_scale: Array | None = None,
        v_scale: Array | None = None,
        *,
        layout: KVLayout = STANDARD,
    ) -> tuple[Array, ...]:
        """See `pallas_kernels.write_kv`."""
        ...

    def copy_pages(self, pages: Array, source: Array, destination: Array, count: Array) -> Array:
        """See `pallas_kernels.copy_pages`; pages may have any shape behind their first axis."""
        ...


def call_of(inputs: AttentionInputs, options: AttentionOptions | None = None) -> Call:
    """What is static about a call with these arrays, or descriptions of arrays."""
    num_tokens, num_heads, head_dim = inputs.q.shape
    num_pages, num_kv_heads, page_size, _ = inputs.v_pages.shape
    num_seqs, max_pages = inputs.block_tables.shape
    return Call(
        num_tokens=num_tokens,
        num_seqs=num_seqs,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        num_pages=num_pages,
        page_size=page_size,
        max_pages=max_pages,
        dtype=inputs.q.dtype,
        page_dtype=inputs.v_pages.dtype,
        quantized=inputs.k_scale is not None,
        window=None if options is None else options.window,
        softcap=None if options is None else options.softcap,
        sinks=inputs.sinks is not None,
        config=None if options is None else options.config,
    )
