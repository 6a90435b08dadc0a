"""The device programs of an engine, as pure functions.

A step is `prepare`, the layers, `finish`, then `draw`. On an accelerator the first three are one
program; on the CPU each group of layers is a program of its own (see `EngineConfig`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import copy_pages
from paxkv.engine.config import Limits
from paxkv.engine.packing import Packing
from paxkv.models.config import ModelConfig
from paxkv.models.decoder import Pages, Rotations, Step, embed, logits, normalise, run_layers
from paxkv.sampling.logit_edits import LogitEdits, edit_logits
from paxkv.sampling.logprobs import TopLogprobs, top_logprobs
from paxkv.sampling.sampler import SamplingRows, sample_tokens
from paxkv.sampling.token_counts import TokenCounts, add_output_tokens

Array = jax.Array

SCORED_ROWS = 32
MOST_BIASES = 1024


class Copies(NamedTuple):
    """Copy-on-write of one step: pages `source[i]` to `target[i]` for i below `count`."""

    source: Array
    target: Array
    count: Array


class Prepared(NamedTuple):
    """What the layers of a step need besides weights and pages."""

    x: Array
    rotations: Rotations
    step: Step
    copies: Copies
    draw_rows: Array


class Drawn(NamedTuple):
    """Results of `draw`, `[R]` and `[R, k]`."""

    tokens: Array
    bad: Array
    logprobs: TopLogprobs


@dataclass(frozen=True)
class Programs:
    """The functions of one engine; static sizes and constants are bound here."""

    config: ModelConfig
    limits: Limits
    rope: tuple[np.ndarray, float]

    def prepare(
        self,
        embedding: Array,
        tables: Array,
        last_tokens: Array,
        buffer: Array,
        packing: Packing,
    ) -> tuple[Prepared, Array]:
        """Unpack the plan, patch the block tables, look up tokens; returns the tables too."""
        plan = packing.unpack(buffer)
        row, column, page = plan["patches"]
        tables = tables.at[row, column].set(page, mode="promise_in_bounds")
        ids = plan["token_ids"]
        unseen = last_tokens[jnp.where(ids < 0, -1 - ids, 0)]
        step = Step(
            token_ids=jnp.where(ids < 0, unseen, ids),
            positions=plan["positions"],
            slot_mapping=plan["slot_mapping"],
            block_tables=tables[plan["rows"]],
            kv_lens=plan["kv_lens"],
            query_start=plan["query_start"],
        )
        x, rotations = embed(embedding, step, self.rope)
        source, target = plan["copies"]
        copies = Copies(source, target, plan["num_copies"][0])
        return Prepared(x, rotations, step, copies, plan["draw_rows"]), tables

    def layers(
        self, layers: list[dict[str, Array]], pages: Pages, prepared: Prepared
    ) -> tuple[Array, Pages]:
        """Copy pages, then run some layers on theirs; returns the hidden rows and the pages."""
        copies = prepared.copies
        copied = tuple(
            (copy_pages(k, *copies), copy_pages(v, *copies)) for k, v in pages
        )
        return run_layers(
            layers, copied, prepared.x, prepared.rotations, prepared.step, self.config
        )

    def finish(self, norm: Array, x: Array, draw_rows: Array, decode: bool) -> tuple[Array, Array]:
        """Hidden rows to draw from, `[max_num_seqs, hidden]`, and all of them.

        All rows are padded to `max_num_batched_tokens`, so that what follows has one shape; a
        decode step has none to give.
        """
        hidden = normalise(x, norm, self.config)
        if decode:
            return hidden[draw_rows], hidden[:0]
        spare = self.limits.max_num_batched_tokens - hidden.shape[0]
        return hidden[draw_rows], jnp.pad(hidden, ((0, spare), (0, 0)))

    def forward(
        self,
        params: dict[str, Any],
        pages: Pages,
        tables: Array,
        last_tokens: Array,
        buffer: Array,
        packing: Packing,
        decode: bool,
    ) -> tuple[Array, Array, Pages, Array]:
        """The whole step as one program."""
        prepared, tables = self.prepare(params["embed"], tables, last_tokens, buffer, packing)
        x, pages = self.layers(params["layers"], pages, prepared)
        drawn, all_rows = self.finish(params["norm"], x, prepared.draw_rows, decode)
        return drawn, all_rows, pages, tables

    def draw_packing(self, rows: int) -> Packing:
        """Layout of what `draw` needs to know of each row; see `SamplingRows` and `LogitEdits`."""
        i32, f32 = np.int32, np.float32
        return Packing(
            {
                "hidden": ((rows,), i32),
                "rows": ((rows,), i32),
                "slots": ((rows,), i32),
                "poison": ((rows,), f32),
                "temperature": ((rows,), f32),
                "top_k": ((rows,), i32),
                "top_p": ((rows,), f32),
                "min_p": ((rows,), f32),
                "key": ((rows, 2), np.uint32),
                "child": ((rows,), i32),
                "position": ((rows,), i32),
                "presence": ((rows,), f32),
                "frequency": ((rows,), f32),
                "repetition": ((rows,), f32),
                "wants_logprobs": ((1,), i32),
            }
        )

    def draw(
        self,
        head: Array,
        hidden: Array,
        counts: TokenCounts,
        last_tokens: Array,
        buffer: Array,
        bias_ids: Array,
        bias_values: Array,
        allowed: Array,
    ) -> tuple[Drawn, TokenCounts, Array]:
        """Draw one token per row; `counts` and `last_tokens` are told."""
        rows = allowed.shape[0]
        plan = self.draw_packing(rows).unpack(buffer)
        raw = logits(head, hidden[plan["hidden"]] + plan["poison"][:, None].astype(hidden.dtype))
        edits = LogitEdits(
            plan["presence"],
            plan["frequency"],
            plan["repetition"],
            plan["slots"],
            bias_ids,
            bias_values,
            allowed,
        )
        tokens, bad = sample_tokens(
            edit_logits(raw, edits, counts),
            SamplingRows(**{name: plan[name] for name in SamplingRows._fields}),
        )
        logprobs = top_logprobs(raw, tokens, self.num_alternatives, plan["wants_logprobs"][0] > 0)
        counts = add_output_tokens(counts, plan["slots"], tokens)
        last_tokens = last_tokens.at[plan["rows"]].set(tokens, mode="promise_in_bounds")
        return Drawn(tokens, bad, logprobs), counts, last_tokens

    def score(self, head: Array, hidden: Array, rows: Array, targets: Array) -> TopLogprobs:
        """Log-probabilities of `targets [SCORED_ROWS]` after hidden rows `rows`, for prompts."""
        return top_logprobs(logits(head, hidden[rows]), targets, self.num_alternatives)

    @property
    def num_alternatives(self) -> int:
        return max(1, min(self.limits.max_logprobs, self.config.vocab_size))


def patch_tables(tables: Array, patches: Array) -> Array:
    """Write table cells `[3, n]`: row, column, page."""
    row, column, page = patches
    return tables.at[row, column].set(page, mode="promise_in_bounds")
