"""Owner of everything on device: weights, pages, tables, and the programs that step them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paxkv.cache.pages import PageLayout, allocate
from paxkv.engine import programs
from paxkv.engine.buckets import Buckets, padded
from paxkv.engine.compilation import Compiler
from paxkv.engine.config import Limits
from paxkv.engine.hooks import Hooks
from paxkv.engine.packing import Packing
from paxkv.engine.plan import StepPlan, StepShape, shapes
from paxkv.engine.programs import MOST_BIASES, SCORED_ROWS
from paxkv.engine.request import Sequence
from paxkv.models.config import ModelConfig
from paxkv.models.decoder import Rope
from paxkv.sampling.allowed_tokens import NoTokenAllowed
from paxkv.sampling.logit_edits import ALL_ALLOWED
from paxkv.sampling.logprobs import TopLogprobs
from paxkv.sampling.sample import SampleResult
from paxkv.sampling.token_counts import (
    TokenCounts,
    add_output_tokens,
    add_prompt_tokens,
    copy_slots,
    empty_counts,
    reset_slots,
)

COUNTED_TOKENS = 512
PATCHED_CELLS = 1024


@dataclass(frozen=True)
class Row:
    """One row to draw: `sequence` from hidden row `hidden` of the step."""

    sequence: Sequence
    hidden: int


@dataclass(frozen=True)
class Results:
    """What `draw` left on device for `rows`; reading it waits for the device."""

    rows: list[Row]
    drawn: SampleResult | None

    def tokens(self) -> list[int]:
        return [] if self.drawn is None else np.asarray(self.drawn.tokens).tolist()

    def bad(self) -> list[bool]:
        return [] if self.drawn is None else np.asarray(self.drawn.bad).tolist()


class Runner:
    """Launches steps and draws. All state on device is owned here and replaced by each launch."""

    def __init__(
        self,
        params: dict[str, Any],
        config: ModelConfig,
        limits: Limits,
        *,
        rope: Rope,
        layout: PageLayout,
        num_pages: int,
        buckets: Buckets,
        layers_per_program: int,
    ) -> None:
        self._params = params
        self._head = params.get("head", params["embed"])
        self._limits = limits
        self._layout = layout
        self._num_pages = num_pages
        self._buckets = buckets
        self._group = min(layers_per_program, config.num_layers)
        self._config = config
        self._rope = rope
        self._alternatives = max(1, limits.max_logprobs)
        self._packings = {shape: shape.packing(limits) for shape in shapes(limits, buckets)}
        self._vocab_size = config.vocab_size
        self._draw_packings = {size: programs.draw_packing(size) for size in buckets.sample}
        self._neutral: dict[int, tuple[jax.Array, jax.Array, jax.Array]] = {}
        self.compiler = Compiler()
        self.hooks = Hooks()
        self.num_steps = 0
        self.reset()

    def reset(self) -> None:
        """Fresh pages, tables and counters; everything cached is lost."""
        rows = self._limits.max_num_seqs + 1
        self._pages = list(allocate(self._layout, self._num_pages))
        self._tables = jnp.zeros((rows, self._limits.max_blocks_per_seq), jnp.int32)
        self._last_tokens = jnp.zeros(rows, jnp.int32)
        self._counts = empty_counts(self._limits.max_num_seqs, self._vocab_size)
        self._hidden: jax.Array | None = None
        self._all_hidden: jax.Array | None = None

    @property
    def alive(self) -> bool:
        """Whether the pages survived the last step."""
        state = [*self._pages, self._tables, self._last_tokens, self._counts]
        return not any(x.is_deleted() for x in jax.tree.leaves(state))

    def compile_all(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Compile every program of every bucket; `progress(done, in all)` after each."""
        jobs = list(self._jobs())
        for done, job in enumerate(jobs):
            if progress is not None:
                progress(done, len(jobs))
            job()
        if progress is not None:
            progress(len(jobs), len(jobs))

    # A step

    def forward(self, plan: StepPlan) -> None:
        """Launch a step; its hidden rows stay here for `draw` and `score`."""
        if self.hooks.before_launch is not None:
            self.hooks.before_launch(self.num_steps)
        self._patch(plan.extra_patches)
        shape = plan.shape
        if self._group == len(self._pages):
            self._forward_whole(shape, plan.buffer)
        else:
            self._forward_in_groups(shape, plan.buffer)
        self.num_steps += 1

    def _forward_whole(self, shape: StepShape, buffer: Any) -> None:
        launched = self._whole(shape)(
            self._params, tuple(self._pages), self._tables, self._last_tokens, buffer
        )
        self._call_inside()
        self._hidden, self._all_hidden, pages, self._tables = launched
        self._pages = list(pages)

    def _forward_in_groups(self, shape: StepShape, buffer: Any) -> None:
        prepared, self._tables = self._prepare(shape)(
            self._params["embed"], self._tables, self._last_tokens, buffer
        )
        layers = self._params["layers"]
        for start in range(0, len(layers), self._group):
            part = slice(start, start + self._group)
            run = self._layers(shape, len(layers[part]))
            x, pages = run(layers[part], tuple(self._pages[part]), prepared)
            self._call_inside()
            self._pages[part] = pages
            prepared = prepared._replace(x=x)
        self._hidden, self._all_hidden = self._finish(shape)(
            self._params["norm"], prepared.x, prepared.draw_rows
        )

    def _call_inside(self) -> None:
        if self.hooks.inside_step is not None:
            self.hooks.inside_step(self.num_steps)

    def draw(self, rows: list[Row]) -> Results:
        """Launch the draw of one token for each row, from the last step's hidden rows."""
        if not rows:
            return Results(rows, None)
        size = padded(self._buckets.sample, len(rows))
        buffer, view = self._draw_packings[size].empty()
        view["rows"][:] = self._limits.max_num_seqs
        view["top_p"][:] = 1.0
        view["repetition"][:] = 1.0
        ids, values, allowed = (None, None, None)
        for place, row in enumerate(rows):
            sequence = row.sequence
            request = sequence.request
            view["hidden"][place] = row.hidden
            view["rows"][place] = sequence.row
            if request.settings.temperature > 0:
                self._set_random(view, place, sequence)
            if request.params.has_penalty:
                self._set_penalties(view, place, sequence)
            if request.wants_logprobs:
                view["wants_logprobs"][0] = 1
            if request.params.logit_bias:
                if ids is None:
                    ids = np.zeros((size, MOST_BIASES), np.int32)
                    values = np.zeros((size, MOST_BIASES), np.float32)
                bias = request.params.logit_bias
                ids[place, : len(bias)] = list(bias)
                values[place, : len(bias)] = list(bias.values())  # type: ignore[index]
            if request.allowed.needed or self.hooks.logits is not None:
                bits = self._allowed(view, place, sequence)
                if bits is not None:
                    if allowed is None:
                        allowed = np.full((size, len(bits)), ALL_ALLOWED, np.uint32)
                    allowed[place] = bits
        neutral = self._neutral_edits(size)
        drawn, self._counts, self._last_tokens = self._draw(size)(
            self._head,
            self._hidden,
            self._counts,
            self._last_tokens,
            buffer,
            neutral[0] if ids is None else ids,
            neutral[1] if values is None else values,
            neutral[2] if allowed is None else allowed,
        )
        return Results(rows, drawn)

    def score(self, rows: np.ndarray, targets: np.ndarray) -> Iterator[tuple[int, TopLogprobs]]:
        """Log-probabilities of `targets [n]` after rows `[n]` of the step, in chunks.

        Yields the number of rows and their results, on the host.
        """
        for start in range(0, len(rows), SCORED_ROWS):
            part = slice(start, start + SCORED_ROWS)
            count = len(rows[part])
            padding = (0, SCORED_ROWS - count)
            scored = self._score()(
                self._head,
                self._all_hidden,
                np.pad(rows[part], padding).astype(np.int32),
                np.pad(targets[part], padding).astype(np.int32),
            )
            yield count, jax.tree.map(np.asarray, scored)

    def count(self, sequence: Sequence) -> None:
        """Start a sequence's token counts from what the host knows of it, for the penalties."""
        slot = self._slot(sequence)
        num_prompt = sequence.request.num_prompt
        self._counts = self._reset_counts()(self._counts, np.array([slot], np.int32))
        for add, tokens in (
            (self._add_prompt(), sequence.token_ids[:num_prompt]),
            (self._add_output(), sequence.token_ids[num_prompt:]),
        ):
            for start in range(0, len(tokens), COUNTED_TOKENS):
                part = tokens[start : start + COUNTED_TOKENS]
                slots = np.zeros(COUNTED_TOKENS, np.int32)
                ids = np.zeros(COUNTED_TOKENS, np.int32)
                slots[: len(part)] = slot
                ids[: len(part)] = part
                self._counts = add(self._counts, slots, ids)

    def copy_counts(self, parent: Sequence, child: Sequence) -> None:
        """Give a forked child its parent's token counts."""
        slots = [np.array([self._slot(s)], np.int32) for s in (parent, child)]
        self._counts = self._copy_counts()(self._counts, *slots)

    # Rows of a draw

    @staticmethod
    def _slot(sequence: Sequence) -> int:
        assert sequence.row is not None
        return sequence.row + 1

    @staticmethod
    def _set_random(view: dict[str, np.ndarray], place: int, sequence: Sequence) -> None:
        request = sequence.request
        settings = request.settings
        view["temperature"][place] = settings.temperature
        view["top_k"][place] = settings.top_k
        view["top_p"][place] = settings.top_p
        view["min_p"][place] = settings.min_p
        view["key"][place] = request.key
        view["child"][place] = sequence.index
        view["position"][place] = len(sequence.token_ids)

    def _set_penalties(self, view: dict[str, np.ndarray], place: int, sequence: Sequence) -> None:
        params = sequence.request.params
        view["slots"][place] = self._slot(sequence)
        view["presence"][place] = params.presence_penalty
        view["frequency"][place] = params.frequency_penalty
        view["repetition"][place] = params.repetition_penalty

    def _allowed(
        self, view: dict[str, np.ndarray], place: int, sequence: Sequence
    ) -> np.ndarray | None:
        hook = self.hooks.logits
        if hook is not None:
            output = len(sequence.token_ids) - sequence.request.num_prompt
            wish = hook(sequence.request.request_id, sequence.index, output)
            if isinstance(wish, float):
                view["poison"][place] = wish
            elif wish is not None:
                bits = np.zeros(-(-self._vocab_size // 32), np.uint32)
                bits[wish // 32] = 1 << wish % 32
                return bits
        try:
            return sequence.request.allowed.row(sequence.output_token_ids)
        except NoTokenAllowed:
            # The row comes back as bad, and its request ends alone.
            return np.zeros(-(-self._vocab_size // 32), np.uint32)

    def _neutral_edits(self, size: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        if size not in self._neutral:
            self._neutral[size] = (
                jnp.asarray(np.zeros((size, MOST_BIASES), np.int32)),
                jnp.asarray(np.zeros((size, MOST_BIASES), np.float32)),
                jnp.asarray(np.full((size, -(-self._vocab_size // 32)), ALL_ALLOWED, np.uint32)),
            )
        return self._neutral[size]

    def _patch(self, patches: np.ndarray) -> None:
        for start in range(0, patches.shape[1], PATCHED_CELLS):
            part = patches[:, start : start + PATCHED_CELLS]
            cells = np.zeros((3, PATCHED_CELLS), np.int32)
            cells[0] = self._limits.max_num_seqs
            cells[:, : part.shape[1]] = part
            self._tables = self._patch_tables()(self._tables, cells)

    # Programs

    def _jobs(self) -> Iterator[Callable[[], Any]]:
        for shape in self._packings:
            if self._group == len(self._pages):
                yield partial(self._whole, shape)
                continue
            yield partial(self._prepare, shape)
            for count in {self._group, len(self._pages) % self._group or self._group}:
                yield partial(self._layers, shape, count)
            yield partial(self._finish, shape)
        for size in self._buckets.sample:
            yield partial(self._neutral_edits, size)
            yield partial(self._draw, size)
        yield from (
            self._score,
            self._patch_tables,
            self._reset_counts,
            self._copy_counts,
            self._add_prompt,
            self._add_output,
        )

    def _all_rows(self, shape: StepShape) -> int:
        """Rows that `score` may look at; a decode step has no prompt."""
        return 0 if shape.decode else self._limits.max_num_batched_tokens

    def _buffer(self, size: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((size,), np.int32)

    def _prepared(self, shape: StepShape) -> Any:
        packing = self._packings[shape]
        function = self._prepare_function(packing)
        embed = self._params["embed"]
        buffer = self._buffer(packing.size)
        return jax.eval_shape(function, embed, self._tables, self._last_tokens, buffer)[0]

    def _whole(self, shape: StepShape) -> Any:
        packing = self._packings[shape]
        return self.compiler.get(
            f"forward {shape.name}",
            partial(
                programs.forward,
                packing=packing,
                rope=self._rope,
                config=self._config,
                all_rows=self._all_rows(shape),
            ),
            lambda: (
                self._params,
                tuple(self._pages),
                self._tables,
                self._last_tokens,
                self._buffer(packing.size),
            ),
            donate=(1, 2),
        )

    def _prepare_function(self, packing: Packing) -> partial[Any]:
        return partial(
            programs.prepare,
            packing=packing,
            rope=self._rope,
            page_size=self._layout.block_size,
            window=self._config.sliding_window,
        )

    def _prepare(self, shape: StepShape) -> Any:
        packing = self._packings[shape]
        return self.compiler.get(
            f"forward {shape.name} prepare",
            self._prepare_function(packing),
            lambda: (
                self._params["embed"],
                self._tables,
                self._last_tokens,
                self._buffer(packing.size),
            ),
            donate=(1,),
        )

    def _layers(self, shape: StepShape, count: int) -> Any:
        return self.compiler.get(
            f"forward {shape.name} layers[{count}]",
            partial(programs.layers, config=self._config),
            lambda: (
                self._params["layers"][:count],
                tuple(self._pages[:count]),
                self._prepared(shape),
            ),
            donate=(1,),
        )

    def _finish(self, shape: StepShape) -> Any:
        def args() -> tuple[Any, ...]:
            prepared = self._prepared(shape)
            return self._params["norm"], prepared.x, prepared.draw_rows

        finish = partial(programs.finish, config=self._config, all_rows=self._all_rows(shape))
        return self.compiler.get(f"forward {shape.name} finish", finish, args)

    def _hidden_rows(self, rows: int) -> jax.ShapeDtypeStruct:
        norm = self._params["norm"]
        return jax.ShapeDtypeStruct((rows, norm.shape[0]), norm.dtype)

    def _draw(self, size: int) -> Any:
        return self.compiler.get(
            f"sample[{size}]",
            partial(programs.draw, alternatives=self._alternatives),
            lambda: (
                self._head,
                self._hidden_rows(self._limits.max_num_seqs),
                self._counts,
                self._last_tokens,
                self._buffer(self._draw_packings[size].size),
                *self._neutral_edits(size),
            ),
            donate=(2, 3),
        )

    def _score(self) -> Any:
        rows = self._buffer(SCORED_ROWS)
        hidden = self._hidden_rows(self._limits.max_num_batched_tokens)
        function = partial(programs.score, alternatives=self._alternatives)
        return self.compiler.get("score", function, lambda: (self._head, hidden, rows, rows))

    def _patch_tables(self) -> Any:
        cells = jax.ShapeDtypeStruct((3, PATCHED_CELLS), np.int32)
        patch = partial(programs.patch_tables)
        return self.compiler.get("patch", patch, lambda: (self._tables, cells), donate=(0,))

    def _reset_counts(self) -> Any:
        return self._on_counts("counts reset", reset_slots, 1, 1)

    def _copy_counts(self) -> Any:
        return self._on_counts("counts copy", copy_slots, 1, 2)

    def _add_prompt(self) -> Any:
        return self._on_counts("counts prompt", add_prompt_tokens, COUNTED_TOKENS, 2)

    def _add_output(self) -> Any:
        return self._on_counts("counts output", add_output_tokens, COUNTED_TOKENS, 2)

    def _on_counts(
        self, name: str, function: Callable[..., TokenCounts], size: int, arguments: int
    ) -> Any:
        def args() -> tuple[Any, ...]:
            return (self._counts, *[self._buffer(size)] * arguments)

        return self.compiler.get(name, partial(function), args, donate=(0,))
