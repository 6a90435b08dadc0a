"""The kernels an engine runs on: which back end of `pallas_kernels`, and how its pages lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np

import pallas_kernels
from pallas_kernels import Call, choose, xla
from paxkv.engine.config import ResolvedConfig
from paxkv.models.config import ModelConfig
from paxkv.models.decoder import Step

Array = jax.Array


@dataclass(frozen=True)
class Kernels:
    """Static part of every program that touches pages.

    Attributes:
        backend: a name that `pallas_kernels` knows.
        batch_invariant: whether a sequence gets the same bits whatever else is in the batch. The
            GPU kernels always give them, for the same cut of a prompt.
        reason: why, and why not the others; a sentence.
    """

    backend: str = "xla"
    batch_invariant: bool = False
    reason: str = field(default="", compare=False, repr=False)

    @classmethod
    def choose(
        cls,
        model: ModelConfig,
        config: ResolvedConfig,
        dtype: Any,
        page_dtype: Any,
    ) -> Kernels:
        """Decide once for an engine; ValueError if the back end named does not cover the model."""
        call = Call(
            num_tokens=config.max_num_batched_tokens,
            num_seqs=config.max_num_seqs,
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            num_pages=config.num_gpu_blocks,
            page_size=config.block_size,
            max_pages=config.max_blocks_per_seq,
            dtype=np.dtype(dtype),
            page_dtype=np.dtype(page_dtype),
            quantized=np.dtype(page_dtype).itemsize == 1,
            window=model.sliding_window,
        )
        try:
            choice = choose(config.attention_backend, call)
        except NotImplementedError as refusal:
            raise ValueError(
                f"attention_backend={config.attention_backend!r} cannot run this: {refusal}"
            ) from None
        return cls(choice.backend, config.deterministic, str(choice))

    @property
    def transposed_keys(self) -> bool:
        """Whether the last two axes of the key pages are exchanged, which the XLA path prefers."""
        return self.backend == "xla"

    def work_lists(self, step: Step, num_tokens: int, page_size: int, window: int | None) -> Any:
        """What is worked out once for all layers."""
        if self.backend != "xla":
            return ()
        return xla.build_work_lists(
            step.block_tables,
            step.kv_lens,
            step.query_start,
            num_tokens=num_tokens,
            page_size=page_size,
            window=window,
            batch_invariant=self.batch_invariant,
        )

    @property
    def copy_pages(self) -> Callable[..., Array]:
        return partial(pallas_kernels.copy_pages, backend=self.backend)

    @property
    def write_kv(self) -> Callable[..., tuple[Array, ...]]:
        if self.backend == "xla":
            return partial(xla.write_kv, transposed_keys=self.transposed_keys)
        return partial(pallas_kernels.write_kv, backend=self.backend)

    def attention(self, head_dim: int, work_lists: Any) -> Callable[..., Any]:
        if self.backend == "xla":
            return partial(
                xla.ragged_paged_attention,
                scale=head_dim**-0.5,
                work_lists=work_lists,
                transposed_keys=self.transposed_keys,
                batch_invariant=self.batch_invariant,
            )
        return partial(pallas_kernels.ragged_paged_attention, backend=self.backend)
