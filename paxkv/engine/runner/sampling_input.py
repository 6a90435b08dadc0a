"""Sampling input: the arrays that the sampler reads, built from the sequences of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np

from paxkv.engine.beam.request import BeamRequest
from paxkv.engine.runner.buckets import padded
from paxkv.engine.runner.hooks import Hooks
from paxkv.engine.scheduler.output import SchedulerOutput
from paxkv.engine.sequence import Sequence
from paxkv.fields import Field, Packing, fields_of
from paxkv.sampling.logit_edits import LogitEdits
from paxkv.sampling.sampler import RowSettings, SamplingRows

_BEAM_ENDS = {"ends": Field(np.uint32, shape=("words",))}
EDITS = {name: x for name, x in fields_of(LogitEdits).items() if x.shape} | _BEAM_ENDS
"""Wide arrays, each a separate argument of `sample`: neutral ones stay on the device."""


def sample_packing(rows: int, neutral_row: int) -> Packing:
    """Layout of the buffer of `sample`: entries per row, and entries for all rows.

    neutral_row: the row of the block table that padding has.
    """
    fields = {
        "hidden": Field(np.int32),
        "rows": Field(np.int32, neutral=neutral_row),
        "poison": Field(np.float32),
        **fields_of(SamplingRows),
        **{name: x for name, x in fields_of(LogitEdits).items() if not x.shape},
        "beam": Field(np.int32),
    }
    once = {"wants_logprobs": Field(np.int32, shape=(1,))}
    return Packing({name: x.of(rows) for name, x in fields.items()} | once)


@dataclass
class SamplingInput:
    """Input of one call of `sample`.

    size: rows of the program. buffer: int32, laid out by its packing. edits: those of `EDITS` that
    some row has.
    """

    size: int
    buffer: np.ndarray
    edits: dict[str, np.ndarray] = field(default_factory=dict)


class SamplingInputBuilder:
    """Builds sampling inputs.

    packings: layout of the buffer by the number of rows. make_edit: neutral rows of one of `EDITS`,
    from its name and their number. hooks: may force tokens and poison logits.
    """

    def __init__(
        self,
        packings: Mapping[int, Packing],
        make_edit: Callable[[str, int], np.ndarray],
        hooks: Hooks,
    ) -> None:
        self._packings = packings
        self._sizes = tuple(packings)
        self._make_edit = make_edit
        self._hooks = hooks

    def plan(self, sequences: list[Sequence], hidden: Items[int]) -> SamplingInput:
        """Build the input that samples for `sequences`, from these hidden rows of the step."""
        size = padded(self._sizes, len(sequences))
        buffer, view = self._packings[size].empty()
        view["hidden"][: len(hidden)] = hidden
        view["rows"][: len(sequences)] = [sequence.row for sequence in sequences]
        plan = SamplingInput(size, buffer)
        hooked = self._hooks.logits is not None
        random, penalized = [], []
        for index, sequence in enumerate(sequences):
            request = sequence.request
            if request.is_random:
                random.append(index)
            if request.sampling_params.has_penalty:
                penalized.append(index)
            if isinstance(request, BeamRequest):
                view["beam"][index] = 1
                self._edit(plan, "ends")[index] = request.end_words
            if request.wants_logprobs:
                view["wants_logprobs"][0] = 1
            if bias := request.sampling_params.logit_bias:
                self._edit(plan, "bias_ids")[index, : len(bias)] = list(bias)
                self._edit(plan, "bias_values")[index, : len(bias)] = list(bias.values())
            if hooked or sequence.is_edited:
                self._set_allowed(plan, view, index, sequence)
        if random:
            _set_random(view, random, [sequences[index] for index in random])
        if penalized:
            _set_penalties(view, penalized, [sequences[index] for index in penalized])
        return plan

    def _edit(self, plan: SamplingInput, name: str) -> np.ndarray:
        """An edit of the plan, all rows of it neutral at first."""
        if name not in plan.edits:
            plan.edits[name] = self._make_edit(name, plan.size)
        return plan.edits[name]

    def _set_allowed(
        self, plan: SamplingInput, view: dict[str, np.ndarray], index: int, sequence: Sequence
    ) -> None:
        wish = self._wish(sequence)
        if isinstance(wish, float):
            view["poison"][index] = wish
        elif wish is not None:
            allowed = self._edit(plan, "allowed")
            allowed[index] = 0
            allowed[index, wish // 32] = 1 << wish % 32
            return
        # Where nothing is left the row comes back as bad, and its request ends alone.
        bits = sequence.allowed()
        if bits is not None:
            self._edit(plan, "allowed")[index] = bits

    def _wish(self, sequence: Sequence) -> int | float | None:
        """The test hook's answer for a row."""
        if self._hooks.logits is None:
            return None
        request = sequence.request
        output = len(sequence.token_ids) - request.num_prompt
        return self._hooks.logits(request.request_id, sequence.index, output)


def recounted(schedule: SchedulerOutput) -> Iterator[Sequence]:
    """Sequences whose token counts must start from what the host knows, before they are read:
    those with a row of their own since this step, and beams, whose history may be another one's.
    """
    for sequence in schedule.started:
        if sequence.request.sampling_params.has_penalty and sequence.row is not None:
            yield sequence
    for sequence in (slot.sequence for slot in schedule.sample_slots):
        request = sequence.request
        if request.is_beam_group and request.sampling_params.has_penalty and not request.ended:
            yield sequence


def forked_counts(schedule: SchedulerOutput) -> Iterator[tuple[Sequence, Sequence]]:
    """Parents and children forked in this step whose token counts matter."""
    for parent, child in schedule.forked:
        if parent.request.sampling_params.has_penalty and child.row is not None:
            yield parent, child


def counts_slot(sequence: Sequence) -> int:
    """Slot of a running sequence's token counts; slot 0 is padding's."""
    assert sequence.row is not None
    return sequence.row + 1


def _set_random(view: dict[str, np.ndarray], indices: list[int], sequences: list[Sequence]) -> None:
    settings = np.concatenate([sequence.request.sampling_words for sequence in sequences])
    settings = settings.reshape(len(sequences), -1)
    for column, name in enumerate(RowSettings._fields):
        view[name].view(np.int32)[indices] = settings[:, column]
    view["key"].view(np.int32)[indices] = settings[:, len(RowSettings._fields) :]
    view["child"][indices] = [sequence.index for sequence in sequences]
    view["position"][indices] = [len(sequence.token_ids) for sequence in sequences]


def _set_penalties(
    view: dict[str, np.ndarray], indices: list[int], sequences: list[Sequence]
) -> None:
    params = [sequence.request.sampling_params for sequence in sequences]
    view["slots"][indices] = [counts_slot(sequence) for sequence in sequences]
    view["presence"][indices] = [each.presence_penalty for each in params]
    view["frequency"][indices] = [each.frequency_penalty for each in params]
    view["repetition"][indices] = [each.repetition_penalty for each in params]
