"""Declarations of device programs, and the arguments they are compiled for."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from paxkv.cache.pages import PageLayout
from paxkv.cache.swap import chunk_sizes, gather_pages
from paxkv.engine.config import ResolvedConfig
from paxkv.engine.runner.attention import Kernels
from paxkv.engine.runner.buckets import Buckets
from paxkv.engine.runner.model_input import StepShape, shapes
from paxkv.engine.runner.sampling_input import EDITS, sample_packing
from paxkv.fields import Packing
from paxkv.models.config import ModelConfig
from paxkv.models.rope import Rope
from paxkv.sampling.sampling_params import MAX_LOGIT_BIAS
from paxkv.sampling.token_counts import empty_counts


@dataclass(frozen=True)
class Variant:
    """Sizes that one executable is compiled for; a program reads those it needs.

    shape: of the step. kinds: of the layers, each by its number. rows: to sample, or pages of a
    chunk.
    """

    shape: StepShape | None = None
    kinds: tuple[int, ...] = ()
    rows: int = 0

    @property
    def layers(self) -> int:
        """How many layers."""
        return len(self.kinds)

    @property
    def kinds_name(self) -> str:
        """How many layers, and their kinds if any is another than the first."""
        kinds = f" of kinds {' '.join(map(str, self.kinds))}" if any(self.kinds) else ""
        return f"{self.layers}{kinds}"


ONCE = Variant()


@dataclass(frozen=True, eq=False)
class Program:
    """A device program, declared once and compiled for each of its variants.

    Attributes:
        name: of an executable; a format that reads the variant `v`.
        function: pure; its keyword arguments are static, and found by name in `Arguments.static`.
        arguments: what it is called with, by name in `Arguments.arrays`.
        donate: arguments whose memory the results take over.
        variants: the name of their list in `Arguments`.
        in_flight: whether its results wait on the device while the next step is launched.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    donate: tuple[str, ...] = ()
    variants: str = "once"
    in_flight: bool = False

    @cached_property
    def static(self) -> tuple[str, ...]:
        """Names of the static arguments."""
        parameters = inspect.signature(self.function).parameters.values()
        return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)

    def name_of(self, variant: Variant) -> str:
        return self.name.format(v=variant)


CPU_LAYERS = 6
SCORED_ROWS = 32
COUNTED_TOKENS = 512
PATCHED_CELLS = 1024


class LayerGroup(NamedTuple):
    """Consecutive layers that one program runs: the first, and the number of each one's kind."""

    start: int
    kinds: tuple[int, ...]

    @property
    def part(self) -> slice:
        return slice(self.start, self.start + len(self.kinds))

    @property
    def alike(self) -> tuple[int, ...]:
        """Kinds for a program that moves pages, which all layers have alike."""
        return (0,) * len(self.kinds)


class Arguments:
    """Arrays as shapes, static values as they are; some depend on the variant.

    Attributes:
        arrays, static: by the names that `programs` declares, from a variant.
        packings, sample_packings: layout of the buffer that each step and each sample reads.
        groups: decoder layers by program; groups of the same kinds share one.
        chunk_sizes: pages that one program moves to or from host memory.
        kernels: the attention kernels in the programs.
    """

    def __init__(
        self,
        params: dict[str, Any],
        model: ModelConfig,
        config: ResolvedConfig,
        *,
        ropes: tuple[Rope, ...],
        layout: PageLayout,
        num_pages: int,
        buckets: Buckets,
        kernels: Kernels,
        swapping: bool,
    ) -> None:
        self.kernels = kernels
        self.packings = {shape: shape.packing(config) for shape in shapes(config, buckets)}
        packing = partial(sample_packing, neutral_row=config.max_num_seqs)
        self.sample_packings = {rows: packing(rows) for rows in buckets.sample}
        self.chunk_sizes = chunk_sizes(layout)
        self._swapping = swapping
        on_cpu = jax.default_backend() == "cpu"
        wanted = config.layers_per_program or (CPU_LAYERS if on_cpu else model.num_layers)
        kinds = list(dict.fromkeys(model.layers))
        numbers = tuple(kinds.index(kind) for kind in model.layers)
        self.groups = [
            LayerGroup(start, numbers[start : start + wanted])
            for start in range(0, model.num_layers, wanted)
        ]
        first = {group.kinds: group.part for group in reversed(self.groups)}
        self._whole_alone = config.layers_per_program is None
        sizes = {"biases": MAX_LOGIT_BIAS, "words": -(-model.vocab_size // 32)}
        self._edits = {
            rows: {name: field.of(rows, **sizes) for name, field in EDITS.items()}
            for rows in buckets.sample
        }
        self._neutral_edits: dict[int, dict[str, jax.Array]] = {}
        pages = (layout.arrays(num_pages),) * layout.num_layers
        norm = params["norm"]

        def integers(*shape: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, np.int32)

        def hidden(columns: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((norm.shape[0], columns), norm.dtype)

        def edit(name: str, variant: Variant) -> jax.ShapeDtypeStruct:
            return self._edits[variant.rows][name].abstract

        fixed = {
            "params": params,
            "embed": params["embed"],
            "norm": norm,
            "head": params.get("head", params["embed"]),
            "all_pages": pages,
            "tables": integers(config.max_num_seqs + 1, config.max_blocks_per_seq),
            "last_tokens": integers(config.max_num_seqs + 1),
            "counts": jax.eval_shape(partial(empty_counts, config.max_num_seqs, model.vocab_size)),
            "hidden": hidden(config.max_num_seqs),
            "all_hidden": hidden(config.max_num_batched_tokens),
            "scored": integers(SCORED_ROWS),
            "range": integers(2),
            "cells": integers(3, PATCHED_CELLS),
            "slot": integers(1),
            "counted": integers(COUNTED_TOKENS),
            "first_layer": integers(),
        }
        self.arrays: dict[str, Callable[[Variant], Any]] = {
            **{name: partial(_same, value) for name, value in fixed.items()},
            "layers": lambda variant: params["layers"][first[variant.kinds]],
            "pages": lambda variant: pages[: variant.layers],
            "buffer": lambda variant: self._packing(variant).abstract,
            **{name: partial(edit, name) for name in EDITS},
            "chunk": lambda variant: integers(variant.rows),
            "content": lambda variant: jax.eval_shape(gather_pages, pages, integers(variant.rows)),
        }
        # Rows that `score` may look at; a decode step has no prompt.
        all_rows = config.max_num_batched_tokens
        self.static: dict[str, Callable[[Variant], Any]] = {
            "config": partial(_same, model),
            "kernels": partial(_same, kernels),
            "ropes": partial(_same, ropes),
            "kinds": lambda variant: tuple(kinds[number] for number in variant.kinds),
            "page_size": partial(_same, layout.block_size),
            "softcap": partial(_same, model.final_logit_softcapping),
            "packing": self._packing,
            "all_rows": lambda variant: 0 if variant.shape.decode else all_rows,  # type: ignore[union-attr]
            "alternatives": partial(_same, max(1, config.max_logprobs)),
            "beam_width": partial(_same, config.max_beam_width),
        }

    def _packing(self, variant: Variant) -> Packing:
        """Layout of the buffer of a step, or of its sampler."""
        if variant.shape is not None:
            return self.packings[variant.shape]
        return self.sample_packings[variant.rows]

    def in_groups(self, shape: StepShape) -> bool:
        """Whether a step is several programs.

        By default that of a lone sequence never is: launching six of them costs it a tenth.
        """
        if self._whole_alone and shape.num_tokens == 1:
            return False
        return len(self.groups) > 1

    def neutral_edits(self, rows: int) -> dict[str, jax.Array]:
        """Neutral edits of so many rows, on the device."""
        if rows not in self._neutral_edits:
            fields = self._edits[rows].items()
            self._neutral_edits[rows] = {n: jnp.asarray(field.array()) for n, field in fields}
        return self._neutral_edits[rows]

    @property
    def constants(self) -> list[dict[str, jax.Array]]:
        """Arrays on the device that programs get beside weights and state."""
        return list(self._neutral_edits.values())

    def edit(self, name: str, rows: int) -> np.ndarray:
        """Neutral rows of one edit on the host, to be filled in."""
        return self._edits[rows][name].array()

    # Variants

    @property
    def once(self) -> list[Variant]:
        return [ONCE]

    @property
    def whole_steps(self) -> list[Variant]:
        return [Variant(shape) for shape in self.packings if not self.in_groups(shape)]

    @property
    def grouped_steps(self) -> list[Variant]:
        return [Variant(shape) for shape in self.packings if self.in_groups(shape)]

    @property
    def layer_groups(self) -> list[Variant]:
        kinds = dict.fromkeys(group.kinds for group in self.groups)
        return [Variant(step.shape, numbers) for step in self.grouped_steps for numbers in kinds]

    @property
    def samples(self) -> list[Variant]:
        return [Variant(rows=rows) for rows in self.sample_packings]

    @property
    def chunks(self) -> list[Variant]:
        return [Variant(rows=n) for n in sorted(set(self.chunk_sizes))] if self._swapping else []

    @property
    def chunks_of_groups(self) -> list[Variant]:
        groups = dict.fromkeys(group.alike for group in self.groups)
        return [Variant(kinds=kinds, rows=chunk.rows) for chunk in self.chunks for kinds in groups]

    # Sizes

    @property
    def largest_steps(self) -> list[StepShape]:
        """The largest step of each kind."""
        kinds = {shape.decode: shape for shape in sorted(self.packings, key=lambda s: s.num_tokens)}
        return list(kinds.values())

    @property
    def largest_sample(self) -> int:
        return max(self.sample_packings)

    @property
    def state(self) -> Any:
        """Shapes of the state between steps, without pages."""
        return [self.arrays[name](ONCE) for name in ("tables", "last_tokens", "counts")]

    @property
    def input_bytes(self) -> int:
        """Bytes sent to the device for the largest step and its sampler."""
        step = max(packing.size for packing in self.packings.values())
        rows = self.largest_sample
        edits = sum(field.array().size for field in self._edits[rows].values())
        return 4 * (step + self.sample_packings[rows].size + edits)


def _same(value: Any, variant: Variant) -> Any:
    """Value that does not depend on the variant."""
    return value
