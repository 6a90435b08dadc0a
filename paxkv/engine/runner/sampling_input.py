"""From the sequences of a step to the arrays that its sample reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from paxkv.engine.beam.request import BeamRequest
from paxkv.engine.runner.buckets import padded
from paxkv.engine.runner.hooks import Hooks
from paxkv.engine.runner.packing import Packing
from paxkv.engine.runner.programs import MOST_BIASES
from paxkv.engine.scheduler.output import SchedulerOutput
from paxkv.engine.sequence import Sequence
from paxkv.sampling.logit_edits import ALL_ALLOWED


@dataclass
class SamplingInput:
    """One sample for the device.

    size: rows of the program. buffer: int32, laid out by its packing. bias_ids, bias_values:
    `[size, MOST_BIASES]`; allowed, and what ends a beam: bits `[size, ceil(V / 32)]`; None where no
    row has any.
    """

    size: int
    buffer: np.ndarray
    bias_ids: np.ndarray | None = None
    bias_values: np.ndarray | None = None
    allowed: np.ndarray | None = None
    ends: np.ndarray | None = None


class SamplingInputBuilder:
    """Builds sample plans.

    packings: layout of the buffer by the number of rows. neutral_row: of the block table, of
    padding. hooks: may force tokens and poison logits.
    """

    def __init__(
        self, packings: Mapping[int, Packing], neutral_row: int, vocab_size: int, hooks: Hooks
    ) -> None:
        self._packings = packings
        self._sizes = tuple(packings)
        self._neutral_row = neutral_row
        self._words = -(-vocab_size // 32)
        self._hooks = hooks

    def plan(self, sequences: list[Sequence], hidden: Items[int]) -> SamplingInput:
        """A sample for each of `sequences`, from these hidden rows of the step."""
        size = padded(self._sizes, len(sequences))
        buffer, view = self._packings[size].empty()
        view["hidden"][: len(hidden)] = hidden
        view["rows"][:] = self._neutral_row
        view["rows"][: len(sequences)] = [sequence.row for sequence in sequences]
        view["top_p"][:] = 1.0
        view["repetition"][:] = 1.0
        plan = SamplingInput(size, buffer)
        hooked = self._hooks.logits is not None
        random, penalised = [], []
        for index, sequence in enumerate(sequences):
            request = sequence.request
            if request.is_random:
                random.append(index)
            if request.sampling_params.has_penalty:
                penalised.append(index)
            if isinstance(request, BeamRequest):
                view["beam"][index] = 1
                if plan.ends is None:
                    plan.ends = np.zeros((size, self._words), np.uint32)
                plan.ends[index] = request.end_words
            if request.wants_logprobs:
                view["wants_logprobs"][0] = 1
            if request.sampling_params.logit_bias:
                _set_bias(plan, index, request.sampling_params.logit_bias)
            if hooked or sequence.is_edited:
                self._set_allowed(plan, view, index, sequence)
        if random:
            _set_random(view, random, [sequences[index] for index in random])
        if penalised:
            _set_penalties(view, penalised, [sequences[index] for index in penalised])
        return plan

    def _set_allowed(
        self, plan: SamplingInput, view: dict[str, np.ndarray], index: int, sequence: Sequence
    ) -> None:
        bits = self._hooked(view, index, sequence)
        if bits is None:
            # Where nothing is left the row comes back as bad, and its request ends alone.
            bits = sequence.allowed()
        if bits is None:
            return
        if plan.allowed is None:
            plan.allowed = np.full((plan.size, self._words), ALL_ALLOWED, np.uint32)
        plan.allowed[index] = bits

    def _hooked(
        self, view: dict[str, np.ndarray], index: int, sequence: Sequence
    ) -> np.ndarray | None:
        hook = self._hooks.logits
        if hook is None:
            return None
        request = sequence.request
        output = len(sequence.token_ids) - request.num_prompt
        wish = hook(request.request_id, sequence.index, output)
        if isinstance(wish, float):
            view["poison"][index] = wish
        elif wish is not None:
            bits = np.zeros(self._words, np.uint32)
            bits[wish // 32] = 1 << wish % 32
            return bits
        return None


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
    """Parents and children of this step whose token counts matter."""
    for parent, child in schedule.forked:
        if parent.request.sampling_params.has_penalty and child.row is not None:
            yield parent, child


def counts_slot(sequence: Sequence) -> int:
    """Where the token counts of a running sequence are; slot 0 is nobody's."""
    assert sequence.row is not None
    return sequence.row + 1


def _set_random(view: dict[str, np.ndarray], indices: list[int], sequences: list[Sequence]) -> None:
    settings = np.concatenate([sequence.request.sampling_words for sequence in sequences])
    settings = settings.reshape(len(sequences), -1)
    for column, name in enumerate(("temperature", "top_k", "top_p", "min_p")):
        view[name].view(np.int32)[indices] = settings[:, column]
    view["key"].view(np.int32)[indices] = settings[:, 4:]
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


def _set_bias(plan: SamplingInput, index: int, bias: Mapping[int, float]) -> None:
    if plan.bias_ids is None or plan.bias_values is None:
        plan.bias_ids = np.zeros((plan.size, MOST_BIASES), np.int32)
        plan.bias_values = np.zeros((plan.size, MOST_BIASES), np.float32)
    plan.bias_ids[index, : len(bias)] = list(bias)
    plan.bias_values[index, : len(bias)] = list(bias.values())
