"""What steps take on the device beside weights and pages, read from their compiled programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from paxkv.engine.program_table import ProgramTable


@dataclass(frozen=True)
class StepMemory:
    """Bytes beside weights and pages. state: kept between steps. transient: what the largest step
    and its draw need on top."""

    state: int
    transient: int

    @property
    def total(self) -> int:
        return self.state + self.transient


def step_memory(table: ProgramTable) -> StepMemory:
    """Compiles the largest step of each kind, the largest draw and the scoring of prompts.

    Counted are temporaries, of which one program's live at a time; results and inputs twice, as a
    step is launched before the one before it is read; and the code of all programs, each taken to
    be as large as the largest.
    """
    forward = [table.forward(shape) for shape in table.largest_steps()]
    draw = [table.draw(table.largest_draw), table.score()]
    programs = [program for step in forward for program in step] + draw
    analyses = [program.memory_analysis() for program in programs]
    temporary = max(analysis.temp_size_in_bytes for analysis in analyses)
    code = max(analysis.generated_code_size_in_bytes for analysis in analyses)
    results = max(sum(map(new_bytes, step)) for step in forward) + sum(map(new_bytes, draw))
    transient = temporary + 2 * (results + table.input_bytes) + code * len(list(table.jobs()))
    return StepMemory(array_bytes(table.state), int(transient))


def new_bytes(program: Any) -> int:
    """Results of a compiled program that do not take an argument's place."""
    analysis = program.memory_analysis()
    return max(0, int(analysis.output_size_in_bytes - analysis.alias_size_in_bytes))


def array_bytes(tree: Any) -> int:
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))
