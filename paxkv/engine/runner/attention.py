"""The kernels an engine runs on: which back end of `pallas_kernels`, and how its pages lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import numpy as np

import pallas_kernels
from pallas_kernels import Call, choose, xla
from paxkv.engine.config import ResolvedConfig
from paxkv.models.attention import Attend, Step
from paxkv.models.config import LayerKind, ModelConfig

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
            softcap=model.attn_logit_softcapping,
        )
        # A back end that declines a window declines the model.
        calls = [replace(call, window=window) for window in model.windows]
        try:
            choice = choose(config.attention_backend, calls[0])
            for other in calls[1:]:
                choose(choice.backend, other)
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
        """What is worked out once for all layers of a window."""
        if self.backend != "xla":
            return None
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

    def attention(
        self, model: ModelConfig, work_lists: tuple[Any, ...]
    ) -> Callable[[LayerKind], Attend]:
        """What attends in layers of a kind; `work_lists` are those of `model.windows`."""
        by_window = dict(zip(model.windows, work_lists, strict=True))
        if self.backend == "xla":
            attend: Attend = partial(
                xla.ragged_paged_attention,
                transposed_keys=self.transposed_keys,
                batch_invariant=self.batch_invariant,
            )
        else:
            attend = partial(pallas_kernels.ragged_paged_attention, backend=self.backend)
        scale, softcap = model.score_scale, model.attn_logit_softcapping
        return lambda kind: partial(
            attend,
            scale=scale,
            softcap=softcap,
            window=kind.window,
            work_lists=by_window[kind.window],
        )
