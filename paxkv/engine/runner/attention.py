"""The kernels an engine runs on: which back end of `pallas_kernels`, and how its pages lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from pallas_kernels import Call, Choice, choose
from pallas_kernels.contract import AttentionInputs, AttentionOptions, Backend, KVLayout
from pallas_kernels.custom import CustomBackend
from pallas_kernels.dispatch import module_of
from paxkv.engine.config import ATTENTION_BACKENDS, ResolvedConfig
from paxkv.models.attention import Attend, Step
from paxkv.models.config import LayerKind, ModelConfig

Array = jax.Array


@dataclass(frozen=True)
class Kernels:
    """Static part of every program that touches pages.

    Attributes:
        backend: a name that `pallas_kernels` knows, or the user's own kernel.
        batch_invariant: whether a sequence gets the same bits whatever else is in the batch. The
            GPU kernels always give them, for the same cut of a prompt.
        reason: why, and why not the others; a sentence.
    """

    backend: str | CustomBackend
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
        """Decide once for an engine.

        Raises ValueError if the back end asked for cannot be loaded or does not cover the model.
        """
        asked = config.attention_backend
        backend: str | CustomBackend
        if isinstance(asked, str) and asked in ATTENTION_BACKENDS:
            backend = asked
        else:
            backend = CustomBackend(asked, "attention_backend")
        choice = _choose(backend, model, config, dtype, page_dtype)
        return cls(choice.backend, config.deterministic, str(choice))

    def check(
        self, model: ModelConfig, config: ResolvedConfig, dtype: Any, page_dtype: Any
    ) -> None:
        """Raise ValueError if the back end does not cover the model after all."""
        _choose(self.backend, model, config, dtype, page_dtype)

    @property
    def module(self) -> Backend:
        return module_of(self.backend)

    @property
    def page_layout(self) -> KVLayout:
        return self.module.page_layout

    @property
    def is_custom(self) -> bool:
        """Whether programs hold code that may change while its name stays."""
        return not isinstance(self.backend, str)

    def prepare(self, model: ModelConfig, step: Step, page_size: int) -> tuple[Any, ...]:
        """What the layers of a window have in common, for each of `model.windows`."""
        arrays = (step.block_tables, step.kv_lens, step.query_start)
        sizes = (step.token_ids.shape[0], page_size)
        return tuple(
            self.module.prepare(*arrays, *sizes, self._options(model, window))
            for window in model.windows
        )

    @property
    def copy_pages(self) -> Callable[..., Array]:
        return self.module.copy_pages

    @property
    def write_kv(self) -> Callable[..., tuple[Array, ...]]:
        return partial(self.module.write_kv, layout=self.page_layout)

    def attention(
        self, model: ModelConfig, prepared: tuple[Any, ...]
    ) -> Callable[[LayerKind], Attend]:
        """What attends in layers of a kind, as `ragged_paged_attention` does, after `prepare`."""
        by_window = dict(zip(model.windows, prepared, strict=True))

        def of(kind: LayerKind) -> Attend:
            options = self._options(model, kind.window)

            def attend(
                *arrays: Array, k_scale: Array | None = None, v_scale: Array | None = None
            ) -> Any:
                q, k_pages, v_pages, block_tables, kv_lens, query_start = arrays
                inputs = AttentionInputs(
                    q,
                    k_pages,
                    v_pages,
                    block_tables,
                    kv_lens,
                    query_start,
                    k_scale,
                    v_scale,
                    prepared=by_window[kind.window],
                )
                return self.module.attention(inputs, options)

            return attend

        return of

    def _options(self, model: ModelConfig, window: int | None) -> AttentionOptions:
        return AttentionOptions(
            scale=model.score_scale,
            window=window,
            softcap=model.attn_logit_softcapping,
            batch_invariant=self.batch_invariant,
            layout=self.page_layout,
        )


def _choose(
    backend: str | CustomBackend,
    model: ModelConfig,
    config: ResolvedConfig,
    dtype: Any,
    page_dtype: Any,
) -> Choice:
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
        choice = choose(backend, calls[0])
        for other in calls[1:]:
            choose(choice.backend, other)
    except NotImplementedError as refusal:
        raise ValueError(f"attention_backend={str(backend)!r} cannot run this: {refusal}") from None
    return choice
