"""The device programs of an engine, as pure functions.

A step is `prepare`, the layers, `select_rows`, then `sample`. On an accelerator the first three
are one program; on the CPU each group of layers is one (see `EngineConfig`). Everything
static is a keyword argument, hashable, so that engines of one process share what they compile.

Beside each function stands its declaration. Warm-up, the analysis of memory, the caches and the
count of programs go by the list of them, `PROGRAMS`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import export

from paxkv.cache.swap import gather_pages, scatter_pages
from paxkv.engine.runner.attention import Kernels
from paxkv.engine.runner.program import Program
from paxkv.engine.runner.sampling_input import EDITS
from paxkv.fields import Packing
from paxkv.models.attention import Step
from paxkv.models.config import LayerKind, ModelConfig
from paxkv.models.decoder import Pages, embed, final_norm, logits, run_layers
from paxkv.models.rope import Rope, Rotations
from paxkv.sampling import sampler
from paxkv.sampling.logit_edits import LogitEdits
from paxkv.sampling.logprobs import BeamCandidates, TopLogprobs, top_logprobs
from paxkv.sampling.sampler import SampleResult, SamplingRows
from paxkv.sampling.token_counts import (
    TokenCounts,
    add_output_tokens,
    add_prompt_tokens,
    copy_slots,
    reset_slots,
)

Array = jax.Array


class Copies(NamedTuple):
    """Copy-on-write of one step: pages `source[i]` to `target[i]` for i below `num_copies`."""

    source: Array
    target: Array
    num_copies: Array


class Prepared(NamedTuple):
    """Inputs of a step's layers besides weights and pages.

    rotations are by index of the rope, work_lists by index of the window.
    """

    x: Array
    rotations: tuple[Rotations, ...]
    step: Step
    work_lists: tuple[Any, ...]
    copies: Copies
    sample_rows: Array


# What stands in arguments or results, so that a program can be written to disk.
for _kind in (
    BeamCandidates,
    Copies,
    Prepared,
    SampleResult,
    Step,
    TokenCounts,
    TopLogprobs,
):
    export.register_namedtuple_serialization(_kind, serialized_name=f"paxkv.{_kind.__name__}")


def prepare(
    embedding: Array,
    tables: Array,
    last_tokens: Array,
    buffer: Array,
    *,
    packing: Packing,
    ropes: tuple[Rope, ...],
    page_size: int,
    config: ModelConfig,
    kernels: Kernels,
) -> tuple[Prepared, Array]:
    """Unpack the input, patch the block tables, look up tokens; return the tables too."""
    plan = packing.unpack(buffer)
    tables = patch_tables(tables, plan["patches"])
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
    x, rotations = embed(embedding, step, ropes, config)
    work_lists = kernels.prepare(config, step, page_size)
    source, target = plan["copies"]
    copies = Copies(source, target, plan["num_copies"][0])
    return Prepared(x, rotations, step, work_lists, copies, plan["sample_rows"]), tables


PREPARE = Program(
    "forward {v.shape.name} prepare",
    prepare,
    ("embed", "tables", "last_tokens", "buffer"),
    donate=("tables",),
    variants="grouped_steps",
    in_flight=True,
)


def layers(
    layers: list[dict[str, Array]],
    pages: Pages,
    prepared: Prepared,
    *,
    config: ModelConfig,
    kinds: tuple[LayerKind, ...],
    kernels: Kernels,
) -> tuple[Array, Pages]:
    """Copy pages, then run some layers on theirs; returns the hidden states and the pages.

    kinds: of these layers; groups of the same kinds share one program.
    """
    copies = prepared.copies
    copy = kernels.copy_pages
    copied = tuple(tuple(copy(array, *copies) for array in arrays) for arrays in pages)
    return run_layers(
        layers,
        copied,
        prepared.x,
        prepared.rotations,
        prepared.step,
        config,
        kinds,
        kernels.write_kv,
        kernels.attention(config, prepared.work_lists),
    )


LAYERS = Program(
    "forward {v.shape.name} layers[{v.kinds_name}]",
    layers,
    ("layers", "pages", "prepared"),
    donate=("pages",),
    variants="layer_groups",
    in_flight=True,
)


def select_rows(
    norm: Array, x: Array, sample_rows: Array, *, config: ModelConfig, all_rows: int
) -> tuple[Array, Array]:
    """Hidden states to sample from, `[hidden, max_num_seqs]`, and all of them padded to `all_rows`.

    The padding gives what follows one shape; a decode step asks for 0 rows.
    """
    hidden = final_norm(x, norm, config)
    everything = hidden[:, :0]
    if all_rows:
        everything = jnp.pad(hidden, ((0, 0), (0, all_rows - hidden.shape[1])))
    return hidden[:, sample_rows], everything


SELECT_ROWS = Program(
    "forward {v.shape.name} select_rows",
    select_rows,
    ("norm", "prepared.x", "prepared.sample_rows"),
    variants="grouped_steps",
    in_flight=True,
)


def forward(
    params: dict[str, Any],
    pages: Pages,
    tables: Array,
    last_tokens: Array,
    buffer: Array,
    *,
    packing: Packing,
    ropes: tuple[Rope, ...],
    config: ModelConfig,
    kernels: Kernels,
    all_rows: int,
) -> tuple[Array, Array, Pages, Array]:
    """Run the whole step as one program."""
    prepared, tables = prepare(
        params["embed"],
        tables,
        last_tokens,
        buffer,
        packing=packing,
        ropes=ropes,
        page_size=pages[0][1].shape[2],
        config=config,
        kernels=kernels,
    )
    x, pages = layers(
        params["layers"], pages, prepared, config=config, kinds=config.layers, kernels=kernels
    )
    sampled, everything = select_rows(
        params["norm"], x, prepared.sample_rows, config=config, all_rows=all_rows
    )
    return sampled, everything, pages, tables


FORWARD = Program(
    "forward {v.shape.name}",
    forward,
    ("params", "all_pages", "tables", "last_tokens", "buffer"),
    donate=("all_pages", "tables"),
    variants="whole_steps",
    in_flight=True,
)


def sample(
    head: Array,
    hidden: Array,
    counts: TokenCounts,
    last_tokens: Array,
    buffer: Array,
    bias_ids: Array,
    bias_values: Array,
    allowed: Array,
    ends: Array,
    *,
    packing: Packing,
    softcap: float | None,
    alternatives: int,
    beam_width: int,
) -> tuple[SampleResult, TokenCounts, Array]:
    """Sample one token per row; update `counts` and `last_tokens`."""
    plan = packing.unpack(buffer)
    raw = logits(head, hidden[:, plan["hidden"]] + plan["poison"].astype(hidden.dtype), softcap)
    arrays = plan | {"bias_ids": bias_ids, "bias_values": bias_values, "allowed": allowed}
    edits = LogitEdits(**{name: arrays[name] for name in LogitEdits._fields})
    rows = SamplingRows(**{name: plan[name] for name in SamplingRows._fields})
    sampled = sampler.sample(
        raw,
        rows,
        edits,
        counts,
        alternatives,
        plan["wants_logprobs"][0] > 0,
        plan["beam"] > 0,
        ends,
        beam_width,
    )
    counts = add_output_tokens(counts, plan["slots"], sampled.tokens)
    last_tokens = last_tokens.at[plan["rows"]].set(sampled.tokens, mode="promise_in_bounds")
    return sampled, counts, last_tokens


SAMPLE = Program(
    "sample[{v.rows}]",
    sample,
    ("head", "hidden", "counts", "last_tokens", "buffer", *EDITS),
    donate=("counts", "last_tokens"),
    variants="samples",
    in_flight=True,
)


def score(
    head: Array,
    hidden: Array,
    rows: Array,
    targets: Array,
    *,
    softcap: float | None,
    alternatives: int,
) -> TopLogprobs:
    """Log-probabilities of `targets [SCORED_ROWS]` after hidden rows `rows`, for prompts."""
    return top_logprobs(logits(head, hidden[:, rows], softcap), targets, alternatives)


SCORE = Program("score", score, ("head", "all_hidden", "scored", "scored"), in_flight=True)


def hidden_sum(hidden: Array, part: Array) -> Array:
    """Sum float32 `[hidden]` of the columns `part[0] <= i < part[1]` of `hidden [hidden, rows]`."""
    column = jnp.arange(hidden.shape[1])
    inside = (column >= part[0]) & (column < part[1])
    return jnp.where(inside, hidden.astype(jnp.float32), 0.0).sum(1)


HIDDEN_SUM = Program("hidden sum", hidden_sum, ("all_hidden", "range"))


def patch_tables(tables: Array, patches: Array) -> Array:
    """Write table cells `[3, n]`: row, column, page."""
    row, column, page = patches
    return tables.at[row, column].set(page, mode="promise_in_bounds")


PATCH_TABLES = Program("patch", patch_tables, ("tables", "cells"), donate=("tables",))

# Functions of other packages.
RESET_COUNTS = Program("counts reset", reset_slots, ("counts", "slot"), donate=("counts",))
COPY_COUNTS = Program("counts copy", copy_slots, ("counts", "slot", "slot"), donate=("counts",))
ADD_PROMPT = Program(
    "counts prompt", add_prompt_tokens, ("counts", "counted", "counted"), donate=("counts",)
)
ADD_OUTPUT = Program(
    "counts output", add_output_tokens, ("counts", "counted", "counted"), donate=("counts",)
)
SWAP_OUT = Program("swap out[{v.rows}]", gather_pages, ("all_pages", "chunk"), variants="chunks")
SWAP_IN = Program(
    "swap in[{v.rows}] layers[{v.layers}]",
    scatter_pages,
    ("pages", "content", "chunk", "first_layer"),
    donate=("pages",),
    variants="chunks_of_groups",
)

PROGRAMS = (
    FORWARD,
    PREPARE,
    LAYERS,
    SELECT_ROWS,
    SAMPLE,
    SCORE,
    HIDDEN_SUM,
    PATCH_TABLES,
    RESET_COUNTS,
    COPY_COUNTS,
    ADD_PROMPT,
    ADD_OUTPUT,
    SWAP_OUT,
    SWAP_IN,
)
