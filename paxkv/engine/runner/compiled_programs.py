"""The programs of an engine by what they do, and the shapes each is compiled for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paxkv.cache.pages import PageLayout
from paxkv.cache.swap import chunk_sizes, gather_pages, scatter_pages
from paxkv.engine.config import ResolvedConfig
from paxkv.engine.runner import programs
from paxkv.engine.runner.attention import Kernels
from paxkv.engine.runner.buckets import Buckets
from paxkv.engine.runner.compiler import Compiler
from paxkv.engine.runner.model_input import StepShape, shapes
from paxkv.engine.runner.packing import Packing
from paxkv.engine.runner.programs import MOST_BIASES, SCORED_ROWS
from paxkv.models.config import ModelConfig
from paxkv.models.decoder import Rope
from paxkv.sampling.logit_edits import ALL_ALLOWED
from paxkv.sampling.token_counts import (
    TokenCounts,
    add_output_tokens,
    add_prompt_tokens,
    copy_slots,
    empty_counts,
    reset_slots,
)

CPU_LAYERS = 6
COUNTED_TOKENS = 512
PATCHED_CELLS = 1024


class CompiledPrograms:
    """Executables, each compiled when it is first asked for.

    Attributes:
        compiler: keeps and counts them.
        packings, sample_packings: layout of the buffer that each `forward` and each `sample`
            program reads.
        group: decoder layers in one program.
        chunk_sizes: pages that one program moves to or from host memory.
        kernels: the attention kernels in them.
    """

    def __init__(
        self,
        params: dict[str, Any],
        model: ModelConfig,
        config: ResolvedConfig,
        *,
        rope: Rope,
        layout: PageLayout,
        num_pages: int,
        buckets: Buckets,
        kernels: Kernels,
        swapping: bool,
    ) -> None:
        self._params = params
        self._head = params.get("head", params["embed"])
        self._model = model
        self._config = config
        self._rope = rope
        self._layout = layout
        self.kernels = kernels
        self._buckets = buckets
        on_cpu = jax.default_backend() == "cpu"
        wanted = config.layers_per_program or (CPU_LAYERS if on_cpu else model.num_layers)
        self.group = min(wanted, model.num_layers)
        self._whole_alone = config.layers_per_program is None
        self.chunk_sizes = chunk_sizes(layout)
        self._swapping = swapping
        self._alternatives = max(1, config.max_logprobs)
        self.packings = {shape: shape.packing(config) for shape in shapes(config, buckets)}
        self.sample_packings = {size: programs.sample_packing(size) for size in buckets.sample}
        self._neutral: dict[int, tuple[jax.Array, ...]] = {}
        self._pages = (layout.arrays(num_pages),) * layout.num_layers
        rows = config.max_num_seqs + 1
        self._tables = jax.ShapeDtypeStruct((rows, config.max_blocks_per_seq), np.int32)
        self._last_tokens = self._buffer(rows)
        self._vocab_size = model.vocab_size
        counts = partial(empty_counts, config.max_num_seqs, model.vocab_size)
        self._counts = jax.eval_shape(counts)
        self.compiler = Compiler()

    def in_groups(self, shape: StepShape) -> bool:
        """Whether a step is several programs.

        By default that of a lone sequence never is: launching six of them costs it a tenth.
        """
        if self._whole_alone and shape.num_tokens == 1:
            return False
        return self.group < self._layout.num_layers

    @property
    def _group_sizes(self) -> set[int]:
        return {self.group, self._layout.num_layers % self.group or self.group}

    def jobs(self) -> Iterator[Callable[[], Any]]:
        """Calls that compile everything, program by program."""
        for shape in self.packings:
            if not self.in_groups(shape):
                yield partial(self.whole, shape)
                continue
            yield partial(self.prepare, shape)
            for count in self._group_sizes:
                yield partial(self.layers, shape, count)
            yield partial(self.select_rows, shape)
        for size in self._buckets.sample:
            yield partial(self.neutral_edits, size)
            yield partial(self.sample, size)
        yield from (
            self.score,
            self.hidden_sum,
            self.patch_tables,
            self.reset_counts,
            self.copy_counts,
            self.add_prompt,
            self.add_output,
        )
        for size in set(self.chunk_sizes) if self._swapping else ():
            yield partial(self.gather, size)
            for count in self._group_sizes:
                yield partial(self.scatter, size, count)

    def compile_all(self, progress: Callable[[int, int], None]) -> None:
        """Compile every program of every bucket; `progress(done, in all)` before each and at the
        end."""
        jobs = list(self.jobs())
        for done, job in enumerate(jobs):
            progress(done, len(jobs))
            job()
        progress(len(jobs), len(jobs))

    def forward(self, shape: StepShape) -> list[Any]:
        """The programs of one step, in order; layers of equal number share one."""
        if not self.in_groups(shape):
            return [self.whole(shape)]
        rest = self._layout.num_layers % self.group
        layers = [self.layers(shape, count) for count in (self.group, rest) if count]
        return [self.prepare(shape), *layers, self.select_rows(shape)]

    def largest_steps(self) -> list[StepShape]:
        """The largest step of each kind."""
        kinds = {shape.decode: shape for shape in sorted(self.packings, key=lambda s: s.num_tokens)}
        return list(kinds.values())

    @property
    def largest_sample(self) -> int:
        return max(self.sample_packings)

    @property
    def state(self) -> Any:
        """Shapes of what is kept between steps, pages apart."""
        return self._tables, self._last_tokens, self._counts

    @property
    def input_bytes(self) -> int:
        """Bytes that go to the device for the largest step and its sample."""
        step = max(packing.size for packing in self.packings.values())
        rows = self.largest_sample
        edits = rows * (2 * MOST_BIASES + 2 * -(-self._vocab_size // 32))
        return 4 * (step + self.sample_packings[rows].size + edits)

    def whole(self, shape: StepShape) -> Any:
        packing = self.packings[shape]
        return self.compiler.get(
            f"forward {shape.name}",
            partial(
                programs.forward,
                packing=packing,
                rope=self._rope,
                config=self._model,
                kernels=self.kernels,
                all_rows=self._all_rows(shape),
            ),
            lambda: (
                self._params,
                self._pages,
                self._tables,
                self._last_tokens,
                self._buffer(packing.size),
            ),
            donate=(1, 2),
        )

    def prepare(self, shape: StepShape) -> Any:
        packing = self.packings[shape]
        return self.compiler.get(
            _prepare_name(shape),
            self._prepare_function(packing),
            lambda: (
                self._params["embed"],
                self._tables,
                self._last_tokens,
                self._buffer(packing.size),
            ),
            donate=(1,),
        )

    def layers(self, shape: StepShape, count: int) -> Any:
        return self.compiler.get(
            f"forward {shape.name} layers[{count}]",
            partial(programs.layers, config=self._model, kernels=self.kernels),
            lambda: (
                self._params["layers"][:count],
                self._pages[:count],
                self._prepared(shape),
            ),
            donate=(1,),
        )

    def select_rows(self, shape: StepShape) -> Any:
        def args() -> tuple[Any, ...]:
            prepared = self._prepared(shape)
            return self._params["norm"], prepared.x, prepared.sample_rows

        select = partial(programs.select_rows, config=self._model, all_rows=self._all_rows(shape))
        return self.compiler.get(f"forward {shape.name} select_rows", select, args)

    def sample(self, size: int) -> Any:
        return self.compiler.get(
            f"sample[{size}]",
            partial(
                programs.sample,
                alternatives=self._alternatives,
                beam_width=self._config.max_beam_width,
            ),
            lambda: (
                self._head,
                self._hidden_rows(self._config.max_num_seqs),
                self._counts,
                self._last_tokens,
                self._buffer(self.sample_packings[size].size),
                *self.neutral_edits(size),
            ),
            donate=(2, 3),
        )

    def score(self) -> Any:
        rows = self._buffer(SCORED_ROWS)
        hidden = self._hidden_rows(self._config.max_num_batched_tokens)
        function = partial(programs.score, alternatives=self._alternatives)
        return self.compiler.get("score", function, lambda: (self._head, hidden, rows, rows))

    def hidden_sum(self) -> Any:
        hidden = self._hidden_rows(self._config.max_num_batched_tokens)
        part = self._buffer(2)
        return self.compiler.get("hidden sum", partial(programs.hidden_sum), lambda: (hidden, part))

    def patch_tables(self) -> Any:
        cells = jax.ShapeDtypeStruct((3, PATCHED_CELLS), np.int32)
        patch = partial(programs.patch_tables)
        return self.compiler.get("patch", patch, lambda: (self._tables, cells), donate=(0,))

    def reset_counts(self) -> Any:
        return self._on_counts("counts reset", reset_slots, 1, 1)

    def copy_counts(self) -> Any:
        return self._on_counts("counts copy", copy_slots, 1, 2)

    def add_prompt(self) -> Any:
        return self._on_counts("counts prompt", add_prompt_tokens, COUNTED_TOKENS, 2)

    def add_output(self) -> Any:
        return self._on_counts("counts output", add_output_tokens, COUNTED_TOKENS, 2)

    def gather(self, size: int) -> Any:
        """Pages to host memory."""
        ids = self._buffer(size)
        return self.compiler.get(
            f"swap out[{size}]", partial(gather_pages), lambda: (self._pages, ids)
        )

    def scatter(self, size: int, count: int) -> Any:
        """Pages from host memory, of `count` layers."""
        ids, first = self._buffer(size), jax.ShapeDtypeStruct((), np.int32)

        def args() -> tuple[Any, ...]:
            content = jax.eval_shape(gather_pages, self._pages, ids)
            return self._pages[:count], content, ids, first

        name = f"swap in[{size}] layers[{count}]"
        return self.compiler.get(name, partial(scatter_pages), args, donate=(0,))

    @property
    def constants(self) -> list[tuple[jax.Array, ...]]:
        """Arrays on the device that programs get beside weights and state."""
        return list(self._neutral.values())

    def neutral_edits(self, size: int) -> tuple[jax.Array, ...]:
        """No bias (ids and values), everything allowed, and nothing that ends a beam."""
        words = -(-self._vocab_size // 32)
        if size not in self._neutral:
            self._neutral[size] = (
                jnp.asarray(np.zeros((size, MOST_BIASES), np.int32)),
                jnp.asarray(np.zeros((size, MOST_BIASES), np.float32)),
                jnp.asarray(np.full((size, words), ALL_ALLOWED, np.uint32)),
                jnp.asarray(np.zeros((size, words), np.uint32)),
            )
        return self._neutral[size]

    # Shapes

    def _all_rows(self, shape: StepShape) -> int:
        """Rows that `score` may look at; a decode step has no prompt."""
        return 0 if shape.decode else self._config.max_num_batched_tokens

    def _buffer(self, size: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((size,), np.int32)

    def _prepared(self, shape: StepShape) -> Any:
        self.prepare(shape)
        return self.compiler.results(_prepare_name(shape))[0]

    def _prepare_function(self, packing: Packing) -> partial[Any]:
        return partial(
            programs.prepare,
            packing=packing,
            rope=self._rope,
            page_size=self._layout.block_size,
            window=self._model.sliding_window,
            kernels=self.kernels,
        )

    def _hidden_rows(self, rows: int) -> jax.ShapeDtypeStruct:
        norm = self._params["norm"]
        return jax.ShapeDtypeStruct((norm.shape[0], rows), norm.dtype)

    def _on_counts(
        self, name: str, function: Callable[..., TokenCounts], size: int, arguments: int
    ) -> Any:
        def args() -> tuple[Any, ...]:
            return (self._counts, *[self._buffer(size)] * arguments)

        return self.compiler.get(name, partial(function), args, donate=(0,))


def _prepare_name(shape: StepShape) -> str:
    return f"forward {shape.name} prepare"
