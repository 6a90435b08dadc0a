"""The declarations of device programs, and the fields of what they are called with."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from paxkv.engine.runner.programs import PROGRAMS, Program
from paxkv.engine.runner.sampling_input import EDITS, SamplingInput, sample_packing
from paxkv.fields import Field, Packing, fields_of, neutral_rows
from paxkv.sampling.logit_edits import ALL_ALLOWED, LogitEdits
from paxkv.sampling.sampler import SamplingRows
from paxkv.sampling.sampling_params import SamplingParams
from tests.engine.tiny import Tiny, ids


@pytest.fixture(scope="module")
def tiny() -> Tiny:
    return Tiny(max_num_seqs=4, layers_per_program=1, num_cpu_blocks_override=4)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_declarations_fit_their_functions(tiny: Tiny, program: Program) -> None:
    arguments = tiny.engine.runner.programs.arguments
    parameters = inspect.signature(program.function).parameters.values()
    assert len(program.arguments) + len(program.static) == len(parameters)
    assert {name.partition(".")[0] for name in program.arguments} <= {*arguments.arrays, "prepared"}
    assert set(program.static) <= set(arguments.static)
    assert set(program.donate) <= set(program.arguments)
    assert isinstance(getattr(arguments, program.variants), list)


def test_everything_declared_is_compiled_at_the_start_and_named_apart() -> None:
    tiny = Tiny(max_num_seqs=2, layers_per_program=1, enforce_eager=False, deterministic=True)
    found = list(tiny.engine.runner.programs.all())
    names = [program.name_of(variant) for program, variant in found]
    assert len(set(names)) == len(names)
    assert tiny.engine.stats().compiled_programs == tuple(names)


def sampled(tiny: Tiny, params: SamplingParams) -> tuple[SamplingInput, dict[str, np.ndarray]]:
    """What the device gets for a lone sample in a program of four rows."""
    runner = tiny.engine.runner
    builder = runner._sampling_inputs
    builder._sizes = (4,)
    request = tiny.add(ids(5), params)
    (sequence,) = request.sequences
    sequence.row = 2
    plan = builder.plan([sequence], [0])
    sequence.row = None
    tiny.engine.abort(request.request_id)
    packing = runner.programs.arguments.sample_packings[4]
    return plan, {name: np.asarray(x) for name, x in packing.unpack(plan.buffer).items()}


def test_padding_rows_of_a_sample_are_neutral(tiny: Tiny) -> None:
    asked = {"temperature": 0.5, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "top_n_sigma": 1.5}
    penalties = {"presence_penalty": 1.0, "frequency_penalty": 1.0, "repetition_penalty": 2.0}
    params = SamplingParams(seed=7, logit_bias={3: 1.0}, **asked, **penalties)
    plan, arrays = sampled(tiny, params)
    assert arrays["rows"].tolist() == [2, 4, 4, 4]
    for kind in (SamplingRows, LogitEdits):
        for name, field in fields_of(kind).items():
            if name in EDITS:
                continue
            assert (arrays[name][1:] == field.array()).all(), name
            if name not in ("child", "key"):
                assert arrays[name][0] != field.neutral, name
    for name, value in asked.items():
        assert arrays[name][0] == np.float32(value), name
    assert set(plan.edits) == {"bias_ids", "bias_values"}
    assert plan.edits["bias_values"][0, 0] == 1.0
    assert not plan.edits["bias_values"][1:].any()


def test_padding_of_a_step_is_the_row_that_nobody_has(tiny: Tiny) -> None:
    for packing in tiny.engine.runner.programs.arguments.packings.values():
        _, view = packing.empty()
        assert (view["rows"] == 4).all()
        assert (view["patches"] == [[4], [0], [0]]).all()
        assert not view["slot_mapping"].any()


def test_a_packing_gives_back_what_was_written() -> None:
    fields = {"a": Field(np.float32, neutral=1.5), "b": Field(np.uint32, 2**32 - 1, shape=(2,))}
    packing = Packing({name: field.of(3) for name, field in fields.items()})
    buffer, view = packing.empty()
    assert packing.size == packing.abstract.shape[0] == 9
    view["a"][1] = -2.0
    view["b"][2] = [1, 2]
    again, fresh = packing.empty()
    assert again.tolist() != buffer.tolist()
    assert fresh["a"].tolist() == [1.5] * 3
    arrays = packing.unpack(buffer)
    assert arrays["a"].tolist() == [1.5, -2.0, 1.5]
    assert arrays["b"].tolist() == [[2**32 - 1] * 2] * 2 + [[1, 2]]
    assert arrays["b"].dtype == np.uint32
    assert packing == Packing({name: field.of(3) for name, field in fields.items()})
    assert packing != Packing({name: field.of(4) for name, field in fields.items()})


def test_neutral_edits_take_sizes_by_name() -> None:
    edits = neutral_rows(LogitEdits, 3, biases=4, words=2)
    assert edits.bias_ids.shape == (3, 4)
    assert edits.allowed.shape == (3, 2)
    assert (edits.allowed == ALL_ALLOWED).all()
    assert (edits.repetition == 1).all()
    assert sample_packing(3, 9).empty()[1]["repetition"].tolist() == [1.0] * 3
