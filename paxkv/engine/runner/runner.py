"""Owner of everything on device: weights, pages, tables, and the programs that step them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from paxkv.cache.pages import PageLayout, allocate
from paxkv.engine.config import ResolvedConfig
from paxkv.engine.runner import programs as declared
from paxkv.engine.runner.compiler import CompiledPrograms, Compiler
from paxkv.engine.runner.hooks import Hooks
from paxkv.engine.runner.model_input import ModelInput, StepShape
from paxkv.engine.runner.program import COUNTED_TOKENS, PATCHED_CELLS, SCORED_ROWS, Variant
from paxkv.engine.runner.results import DeviceClock, SamplerOutput
from paxkv.engine.runner.sampling_input import (
    SamplingInputBuilder,
    counts_slot,
    forked_counts,
    recounted,
)
from paxkv.engine.runner.swapper import Swapper
from paxkv.engine.scheduler.output import SchedulerOutput
from paxkv.engine.sequence import Sequence
from paxkv.memory import NO_TRANSFERS, Transfers
from paxkv.models.config import ModelConfig
from paxkv.sampling.logprobs import TopLogprobs
from paxkv.sampling.sampler import SampleResult
from paxkv.sampling.token_counts import empty_counts


class Runner:
    """Launches steps and sampling; owns all state on the device, which each launch replaces."""

    def __init__(
        self,
        params: dict[str, Any],
        model: ModelConfig,
        config: ResolvedConfig,
        *,
        layout: PageLayout,
        num_pages: int,
        programs: CompiledPrograms,
        num_host_blocks: int = 0,
    ) -> None:
        self._params = params
        self._head = params.get("head", params["embed"])
        self._config = config
        self._layout = layout
        self._num_pages = num_pages
        self._vocab_size = model.vocab_size
        self.programs = programs
        self.swapper = Swapper(layout, num_host_blocks, programs)
        self.hooks = Hooks()
        self._sampling_inputs = SamplingInputBuilder(
            programs.arguments.sample_packings, programs.arguments.edit, self.hooks
        )
        self.num_steps = 0
        self._clock = DeviceClock()
        self.reset()

    @property
    def device_seconds(self) -> float:
        """Seconds spent in launching programs and in waiting for their results."""
        return self._clock.seconds

    @property
    def compiler(self) -> Compiler:
        return self.programs.compiler

    def reset(self) -> None:
        """Allocate fresh pages, tables and counters; everything cached is lost."""
        rows = self._config.max_num_seqs + 1
        self._pages = list(allocate(self._layout, self._num_pages))
        self._tables = jnp.zeros((rows, self._config.max_blocks_per_seq), jnp.int32)
        self._last_tokens = jnp.zeros(rows, jnp.int32)
        self._counts = empty_counts(self._config.max_num_seqs, self._vocab_size)
        self._hidden: jax.Array | None = None
        self._all_hidden: jax.Array | None = None

    def release(self) -> None:
        """Free weights, pages and all state on the device, even if referenced elsewhere."""
        self.swapper.drop()
        steps = (self._state, self._hidden, self._all_hidden)
        held = (self._params, self._head, *steps, self.programs.arguments.constants)
        for array in jax.tree.leaves(held):
            array.delete()

    @property
    def page_bytes(self) -> int:
        """Bytes of one page in all layers."""
        return self._layout.bytes_per_page

    @property
    def alive(self) -> bool:
        """Whether the pages survived the last step: neither donated to it, nor results of a failure
        that shows only when waited for.
        """
        if any(x.is_deleted() for x in jax.tree.leaves(self._state)):
            return False
        try:
            self.wait()
        except jax.errors.JaxRuntimeError:
            return False
        return True

    def wait(self) -> None:
        """Wait until the device has done everything launched so far."""
        jax.block_until_ready(self._state)

    @property
    def _state(self) -> list[Any]:
        return [*self._pages, self._tables, self._last_tokens, self._counts]

    # A step

    def forward(self, plan: ModelInput) -> None:
        """Launch a step; its hidden rows stay here for `sample` and `score`."""
        with self._clock:
            if self.hooks.before_launch is not None:
                self.hooks.before_launch(self.num_steps)
            self._transfer(plan.transfers)
            self._patch(plan.extra_patches)
            shape = plan.shape
            if self.programs.arguments.in_groups(shape):
                self._forward_in_groups(shape, plan.buffer)
            else:
                self._forward_whole(shape, plan.buffer)
            self.num_steps += 1

    def transfer(self, transfers: Transfers) -> None:
        """Launch transfers to and from host memory.

        The step's page copies come after, inside `forward`; they touch no page that arrives.
        """
        with self._clock:
            self._transfer(transfers)

    def _transfer(self, transfers: Transfers) -> None:
        if transfers:
            self.swapper.launch(self._pages, transfers)

    @property
    def num_landing(self) -> int:
        """Chunks of pages on their way to host memory."""
        return self.swapper.num_landing

    def land(self, count: int) -> np.ndarray:
        """Wait for the `count` oldest chunks; returns the host pages that hold them now."""
        with self._clock:
            return self.swapper.land(count)

    def _forward_whole(self, shape: StepShape, buffer: Any) -> None:
        launched = self.programs.get(declared.FORWARD, Variant(shape))(
            self._params, tuple(self._pages), self._tables, self._last_tokens, buffer
        )
        self._call_inside()
        self._hidden, self._all_hidden, pages, self._tables = launched
        self._pages = list(pages)

    def _forward_in_groups(self, shape: StepShape, buffer: Any) -> None:
        step = Variant(shape)
        prepared, self._tables = self.programs.get(declared.PREPARE, step)(
            self._params["embed"], self._tables, self._last_tokens, buffer
        )
        layers = self._params["layers"]
        for group in self.programs.arguments.groups:
            part = group.part
            run = self.programs.get(declared.LAYERS, Variant(shape, group.kinds))
            x, pages = run(layers[part], tuple(self._pages[part]), prepared)
            self._call_inside()
            self._pages[part] = pages
            prepared = prepared._replace(x=x)
        self._hidden, self._all_hidden = self.programs.get(declared.SELECT_ROWS, step)(
            self._params["norm"], prepared.x, prepared.sample_rows
        )

    def seconds_per_token(self) -> float:
        """Time the smallest step of prompt tokens, all of them padding."""
        packings = self.programs.arguments.packings
        shape = next(shape for shape in packings if not shape.decode)
        buffer, _ = packings[shape].empty()
        plan = ModelInput(shape, buffer, np.zeros((3, 0), np.int32), NO_TRANSFERS)

        def step() -> None:
            self.forward(plan)
            self.num_steps -= 1
            jax.block_until_ready(self._hidden)

        return _seconds(step) / shape.num_tokens

    def seconds_per_page(self) -> float:
        """Time a chunk of pages to host memory and back: page 0, which holds nothing."""
        size = self.programs.arguments.chunk_sizes[-1]
        page = np.zeros(size, np.int32)

        def there_and_back() -> None:
            self.transfer(NO_TRANSFERS._replace(out_devices=page, out_hosts=page))
            self.swapper.land(self.swapper.num_landing)
            self.transfer(NO_TRANSFERS._replace(in_hosts=page, in_devices=page))
            jax.block_until_ready(self._pages)

        return _seconds(there_and_back) / (2 * size)

    def _call_inside(self) -> None:
        if self.hooks.inside_step is not None:
            self.hooks.inside_step(self.num_steps)

    def sample(self, schedule: SchedulerOutput) -> SamplerOutput:
        """Sample for the sequences of the last launched step that have not ended since."""
        with self._clock:
            for sequence in recounted(schedule):
                self._count(sequence)
            for parent, child in forked_counts(schedule):
                self._copy_counts(parent, child)
            slots = [slot.sequence for slot in schedule.sample_slots]
            hidden = [row for row, sequence in enumerate(slots) if sequence.finish is None]
            going_on = [slots[row] for row in hidden]
            sampled = self._sample(going_on, hidden) if hidden else None
        return SamplerOutput(going_on, sampled, self._clock)

    def _sample(self, sequences: list[Sequence], hidden: list[int]) -> SampleResult:
        """Sample a token for each sequence, from these hidden rows."""
        plan = self._sampling_inputs.plan(sequences, hidden)
        edits = self.programs.arguments.neutral_edits(plan.size) | plan.edits
        run = self.programs.get(declared.SAMPLE, Variant(rows=plan.size))
        sampled, self._counts, self._last_tokens = run(
            self._head,
            self._hidden,
            self._counts,
            self._last_tokens,
            plan.buffer,
            *edits.values(),
        )
        return sampled

    def score(self, rows: np.ndarray, targets: np.ndarray) -> list[tuple[int, TopLogprobs]]:
        """Log-probabilities of `targets [n]` after rows `[n]` of the step, in chunks.

        Each is the number of rows and their results, on the host.
        """
        with self._clock:
            return self._score(rows, targets)

    def _score(self, rows: np.ndarray, targets: np.ndarray) -> list[tuple[int, TopLogprobs]]:
        chunks = []
        for start in range(0, len(rows), SCORED_ROWS):
            part = slice(start, start + SCORED_ROWS)
            count = len(rows[part])
            padding = (0, SCORED_ROWS - count)
            scored = self.programs.get(declared.SCORE)(
                self._head,
                self._all_hidden,
                np.pad(rows[part], padding).astype(np.int32),
                np.pad(targets[part], padding).astype(np.int32),
            )
            chunks.append((count, jax.tree.map(np.asarray, scored)))
        return chunks

    def sampled_from(self, index: int) -> np.ndarray:
        """The hidden state `[hidden_size]` of sample slot `index` of the step."""
        with self._clock:
            return np.asarray(self._hidden)[:, index]

    def hidden_sum(self, first: int, count: int) -> np.ndarray:
        """Sum `[hidden_size]`, float32, of the hidden states of `count` rows of the step."""
        part = np.array([first, first + count], np.int32)
        with self._clock:
            return np.asarray(self.programs.get(declared.HIDDEN_SUM)(self._all_hidden, part))

    def _count(self, sequence: Sequence) -> None:
        """Start a sequence's token counts from what the host knows of it, for the penalties."""
        slot = counts_slot(sequence)
        num_prompt = sequence.request.num_prompt
        reset = self.programs.get(declared.RESET_COUNTS)
        self._counts = reset(self._counts, np.array([slot], np.int32))
        for program, tokens in (
            (declared.ADD_PROMPT, sequence.token_ids[:num_prompt]),
            (declared.ADD_OUTPUT, sequence.token_ids[num_prompt:]),
        ):
            add = self.programs.get(program)
            for start in range(0, len(tokens), COUNTED_TOKENS):
                part = tokens[start : start + COUNTED_TOKENS]
                slots = np.zeros(COUNTED_TOKENS, np.int32)
                ids = np.zeros(COUNTED_TOKENS, np.int32)
                slots[: len(part)] = slot
                ids[: len(part)] = part
                self._counts = add(self._counts, slots, ids)

    def _copy_counts(self, parent: Sequence, child: Sequence) -> None:
        """Give a forked child its parent's token counts."""
        slots = [np.array([counts_slot(s)], np.int32) for s in (parent, child)]
        self._counts = self.programs.get(declared.COPY_COUNTS)(self._counts, *slots)

    def _patch(self, patches: np.ndarray) -> None:
        for start in range(0, patches.shape[1], PATCHED_CELLS):
            part = patches[:, start : start + PATCHED_CELLS]
            cells = np.zeros((3, PATCHED_CELLS), np.int32)
            cells[0] = self._config.max_num_seqs
            cells[:, : part.shape[1]] = part
            self._tables = self.programs.get(declared.PATCH_TABLES)(self._tables, cells)


def _seconds(call: Callable[[], None]) -> float:
    """Time the second of two calls; the first one warms up."""
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
