"""Model input: the integer arrays of one step, built from a schedule."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from paxkv.engine.config import ResolvedConfig
from paxkv.engine.runner.buckets import Buckets, padded
from paxkv.engine.scheduler.output import SchedulerOutput
from paxkv.fields import Field, Packing
from paxkv.memory import BlockManager, Transfers


@dataclass(frozen=True)
class StepShape:
    """Static sizes of one `forward` program.

    num_tokens, num_seqs: T and S. With `decode` each sequence has one token and T = S.
    """

    num_tokens: int
    num_seqs: int
    decode: bool

    @property
    def name(self) -> str:
        return f"{'decode' if self.decode else 'mixed'}[{self.num_tokens}]"

    def packing(self, config: ResolvedConfig) -> Packing:
        """Layout of the buffer; `sample_rows` has room for every sequence."""
        tokens, seqs, padding = self.num_tokens, self.num_seqs, config.max_num_seqs
        patches = self.num_patches(config)
        i32 = np.int32
        return Packing(
            {
                "token_ids": Field(i32, shape=(tokens,)),
                "positions": Field(i32, shape=(tokens,)),
                "slot_mapping": Field(i32, shape=(tokens,)),
                "query_start": Field(i32, shape=(seqs + 1,)),
                "kv_lens": Field(i32, shape=(seqs,)),
                "rows": Field(i32, neutral=padding, shape=(seqs,)),
                "sample_rows": Field(i32, shape=(config.max_num_seqs,)),
                "patches": Field(i32, neutral=((padding,), (0,), (0,)), shape=(3, patches)),
                "copies": Field(i32, shape=(2, seqs)),
                "num_copies": Field(i32, shape=(1,)),
            }
        )

    def num_patches(self, config: ResolvedConfig) -> int:
        """Table cells that fit into the buffer; more are sent before the step."""
        return self.num_seqs + self.num_tokens // config.block_size + 16


def shapes(config: ResolvedConfig, buckets: Buckets) -> list[StepShape]:
    """Every shape a step can have."""
    return [
        *(StepShape(size, size, True) for size in buckets.decode),
        *(StepShape(size, config.max_num_seqs, False) for size in buckets.mixed),
    ]


@dataclass(frozen=True)
class ModelInput:
    """One step for the device.

    buffer: int32, laid out by `shape.packing`. extra_patches: `[3, n]` table cells (row, column,
    page) that did not fit and must be written first. transfers: pages to and from host memory.
    """

    shape: StepShape
    buffer: np.ndarray
    extra_patches: np.ndarray
    transfers: Transfers


class InputBuilder:
    """Builds model inputs.

    Padding tokens write to slot 0 of page 0, which no sequence reads; padding sequences have row
    `max_num_seqs`. A token the host has not seen is named by its row, as `-1 - row`.
    """

    def __init__(self, config: ResolvedConfig, buckets: Buckets, memory: BlockManager) -> None:
        self.buckets = buckets
        self._config = config
        self._memory = memory
        self._packings = {shape: shape.packing(config) for shape in shapes(config, buckets)}

    def plan(self, schedule: SchedulerOutput) -> ModelInput:
        advances = schedule.scheduled
        counts = np.array([a.count for a in advances], np.int32)
        shape = self._shape(int(counts.sum()), len(advances), bool((counts == 1).all()), schedule)
        buffer, view = self._packings[shape].empty()
        seqs, tokens = len(advances), int(counts.sum())
        rows = np.array([a.sequence.row for a in advances], np.int32)
        starts = np.array([a.start for a in advances], np.int32)
        if tokens == seqs:
            owners, positions = rows, starts
        else:
            ends = np.cumsum(counts)
            owners = np.repeat(rows, counts)
            positions = np.arange(tokens, dtype=np.int32) - np.repeat(
                ends - counts - starts, counts
            )
        view["token_ids"][:tokens] = _token_ids(schedule)
        view["positions"][:tokens] = positions
        view["slot_mapping"][:tokens] = self._memory.slots(owners, positions)
        view["query_start"][1 : seqs + 1] = np.cumsum(counts)
        view["query_start"][seqs + 1 :] = tokens
        view["kv_lens"][:seqs] = starts + counts
        view["rows"][:seqs] = rows
        last = np.cumsum(counts) - 1
        view["sample_rows"][: len(schedule.sample_slots)] = last[
            [d.advance for d in schedule.sample_slots]
        ]
        sources, targets = self._memory.take_copies()
        view["copies"][0, : len(sources)] = sources
        view["copies"][1, : len(sources)] = targets
        view["num_copies"][0] = len(sources)
        patches = np.stack(self._memory.take_patches())
        room = view["patches"].shape[1]
        view["patches"][:, : min(room, patches.shape[1])] = patches[:, :room]
        return ModelInput(shape, buffer, patches[:, room:], self._memory.swap.take_transfers())

    def _shape(self, tokens: int, seqs: int, single: bool, schedule: SchedulerOutput) -> StepShape:
        wants_all = any(
            a.sequence.request.wants_hidden and a.start < a.sequence.request.num_prompt
            for a in schedule.scheduled
        )
        if single and self.buckets.decode and not wants_all:
            size = padded(self.buckets.decode, seqs)
            return StepShape(size, size, True)
        return StepShape(padded(self.buckets.mixed, tokens), self._config.max_num_seqs, False)


def _token_ids(schedule: SchedulerOutput) -> Items[int]:
    ids: list[int] = []
    for advance in schedule.scheduled:
        sequence, start = advance.sequence, advance.start
        if advance.count == 1:
            known = sequence.token_ids
            ids.append(known[start] if start < len(known) else -1 - sequence.row)  # type: ignore[operator]
        else:
            ids.extend(sequence.token_ids[start : start + advance.count])
    return ids
