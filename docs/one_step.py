"""Print one mixed step of a tiny engine: what the scheduler decided and the arrays it became.

    python docs/one_step.py

Three requests of token ids run on a model with random weights. `a` asks for two answers, `b`
starts with the same block of tokens as `a`, and `c` is too long for what is left of the step.
docs/architecture.md shows the output and explains it.
"""

from __future__ import annotations

import jax
import numpy as np

from paxkv.engine.build import build_engine
from paxkv.engine.config import EngineConfig
from paxkv.engine.engine import Engine
from paxkv.engine.input_processor import InputProcessor
from paxkv.engine.runner.model_input import ModelInput
from paxkv.engine.scheduler.output import SchedulerOutput
from paxkv.engine.sequence import Sequence
from paxkv.models.config import ModelConfig
from paxkv.models.weight_store import Weights
from paxkv.models.weights import init_params
from paxkv.sampling.sampling_params import SamplingParams

MODEL = ModelConfig(
    architecture="llama",
    vocab_size=100,
    hidden_size=32,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
)
OPTIONS = EngineConfig(
    block_size=4,
    num_gpu_blocks_override=16,
    max_num_seqs=6,
    max_num_batched_tokens=12,
    max_model_len=32,
    enforce_eager=True,  # compile only the programs that run
)
FIELDS = (
    "token_ids",
    "positions",
    "slot_mapping",
    "query_start",
    "kv_lens",
    "rows",
    "sample_rows",
    "copies",
    "num_copies",
)


def watched_step(engine: Engine) -> SchedulerOutput:
    """Run one step, and show it when its arrays are ready to be launched."""
    seen = []
    plan = engine.input_builder.plan

    def show_plan(schedule: SchedulerOutput) -> ModelInput:
        model_input = plan(schedule)
        show(engine, schedule, model_input)
        seen.append(schedule)
        return model_input

    engine.input_builder.plan = show_plan  # type: ignore[method-assign]
    engine.step()
    engine.input_builder.plan = plan  # type: ignore[method-assign]
    return seen[0]


def name(sequence: Sequence) -> str:
    return f"{sequence.request.request_id}.{sequence.index}"


def show(engine: Engine, schedule: SchedulerOutput, model_input: ModelInput) -> None:
    """Print the schedule, the block tables of its rows, and the fields of the input."""
    print(f"schedule: {schedule.num_tokens} tokens, program {model_input.shape.name}")
    sampled = {name(slot.sequence) for slot in schedule.sample_slots}
    for each in schedule.scheduled:
        sequence = each.sequence
        last = each.start + each.count - 1
        positions = f"position {last}" if each.count == 1 else f"positions {each.start} to {last}"
        known = "" if each.start < len(sequence.token_ids) else ", a token the host has not seen"
        then = "then sample" if name(sequence) in sampled else "prompt not complete"
        print(f"  {name(sequence)} in row {sequence.row}: {positions}{known}; {then}")
    print("block tables:")
    for each in schedule.scheduled:
        row = each.sequence.row
        assert row is not None
        print(f"  row {row}: pages {engine.block_manager.row_pages(row).tolist()}")
    print("model input:")
    arrays = model_input.shape.packing(engine.config).unpack(jax.numpy.asarray(model_input.buffer))
    for field in FIELDS:
        array = np.array2string(np.asarray(arrays[field]), max_line_width=90, separator=" ")
        print(f"  {field:<13}" + array.replace("\n", "\n" + " " * 15))


def main() -> None:
    weights = Weights.of(init_params(MODEL, jax.random.key(0), scale=0.4))
    engine = build_engine(weights, MODEL, OPTIONS)
    processor = InputProcessor(engine, MODEL, None)

    def add(request_id: str, prompt: list[int], **params: float) -> None:
        settings = SamplingParams(max_tokens=8, ignore_eos=True, detokenize=False, **params)  # type: ignore[arg-type]
        engine.add(processor.request(prompt, settings, request_id=request_id))

    add("a", [10, 11, 12, 13, 14, 15], n=2, seed=1)
    engine.step()  # the prompt of `a`, from which both of its answers sample
    add("b", [10, 11, 12, 13, 20, 21, 22], temperature=0)
    add("c", [30, 31, 32, 33, 34, 35, 36, 37, 38], temperature=0)
    schedule = watched_step(engine)
    sampling = [slot.sequence for slot in schedule.sample_slots]
    lengths = [len(sequence.token_ids) for sequence in sampling]
    engine.step()  # commits what the step above sampled
    print("sampled tokens:")
    for sequence, length in zip(sampling, lengths, strict=True):
        print(f"  {name(sequence)}: {sequence.token_ids[length:]}")


if __name__ == "__main__":
    main()
