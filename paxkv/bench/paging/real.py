"""The engine itself with contiguous reservations and with pages, in the same memory."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paxkv.bench.figures import FigureTable
from paxkv.bench.paging.trace import SHAREGPT, Lengths, Mix, Trace, read_trace

ALLOCATIONS = ("contiguous", "paged")
RESERVATIONS = 4
# ShareGPT's mix, a quarter as long, so that a CPU runs it in a minute.
SHORT = Mix("short ShareGPT-like", SHAREGPT.mean_prompt / 4, SHAREGPT.mean_output / 4)


@dataclass(frozen=True)
class RealJob:
    """One comparison.

    Attributes:
        model: as for `LLM`.
        trace: path of a trace of lengths, or "synthetic" for ShareGPT's mix, a quarter as long.
        num_requests: drawn from the mix; all are there at the start.
        max_model_len: tokens; the pool holds four times as many.
        block_size, max_num_seqs: of both engines. spread, seed: of the mix.
    """

    model: str
    trace: str = "synthetic"
    num_requests: int = 64
    max_model_len: int = 512
    block_size: int = 16
    max_num_seqs: int = 32
    spread: float = 1.0
    seed: int = 0

    def lengths(self) -> Trace:
        if self.trace != "synthetic":
            return read_trace(self.trace, self.max_model_len)
        mix = Mix(SHORT.name, SHORT.mean_prompt, SHORT.mean_output, self.spread)
        return mix.draw(self.num_requests, self.max_model_len, self.seed)


@dataclass(frozen=True)
class RealRun:
    """One engine on the whole trace.

    Attributes:
        seconds: by the clock. cpu_seconds: of all cores; less disturbed by others on the machine.
        steps, output_tokens, preemptions: exact, whatever else runs.
        held: requests running, mean over the steps in which others waited. most_held: at once.
    """

    seconds: float
    cpu_seconds: float
    steps: int
    output_tokens: int
    preemptions: int
    held: float
    most_held: int


def run_real(job: RealJob, engine_arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    """Figures of both engines and their ratios, as values of JSON.

    engine_arguments: more options for both.
    """
    trace = job.lengths()
    runs, answers = {}, {}
    for allocation in ALLOCATIONS:
        runs[allocation], answers[allocation] = _run(
            job, trace.requests, allocation, engine_arguments or {}
        )
    contiguous, paged = (runs[allocation] for allocation in ALLOCATIONS)
    same = [a == b for a, b in zip(*answers.values())]
    return {
        "job": asdict(job),
        "trace": {
            "name": trace.name,
            "num_requests": len(trace.requests),
            "mean_prompt": trace.mean_prompt,
            "mean_output": trace.mean_output,
        },
        "pool_slots": RESERVATIONS * job.max_model_len,
        "engines": {name: asdict(run) for name, run in runs.items()},
        "ratios": {
            "held": paged.held / contiguous.held,
            "output_tokens_per_step": contiguous.steps / paged.steps,
            "output_tokens_per_second": contiguous.seconds / paged.seconds,
            "output_tokens_per_cpu_second": contiguous.cpu_seconds / paged.cpu_seconds,
        },
        "identical_answers": [sum(same), len(same)],
    }


def _run(
    job: RealJob, requests: tuple[Lengths, ...], allocation: str, engine_arguments: dict[str, Any]
) -> tuple[RealRun, list[list[int]]]:
    from paxkv.engine.admission import Admitter
    from paxkv.llm import LLM
    from paxkv.sampling.params import SamplingParams

    per_request = -(-job.max_model_len // job.block_size)
    options: dict[str, Any] = {
        "max_model_len": job.max_model_len,
        "block_size": job.block_size,
        "max_num_seqs": job.max_num_seqs,
        "num_gpu_blocks_override": RESERVATIONS * per_request,
        "enable_prefix_caching": False,
        "allocation": allocation,
    }
    llm = LLM(job.model, skip_tokenizer_init=True, **(options | engine_arguments))
    engine, config = llm.engine, llm.model_config
    random = np.random.default_rng(job.seed)
    prompts = [random.integers(0, config.vocab_size, each.prompt).tolist() for each in requests]
    params = [
        SamplingParams(temperature=0, max_tokens=each.output, ignore_eos=True, detokenize=False)
        for each in requests
    ]
    made = Admitter(engine, config, None).requests(prompts, params)
    scheduler = engine.scheduler
    crowded: list[int] = []
    most, steps = 0, engine.num_steps
    start, cpu_start = time.perf_counter(), time.process_time()
    for request in made:
        engine.add(request)
    while engine.has_work:
        engine.step()
        most = max(most, len(scheduler.running))
        if scheduler.waiting:
            crowded.append(len(scheduler.running))
    run = RealRun(
        seconds=time.perf_counter() - start,
        cpu_seconds=time.process_time() - cpu_start,
        steps=engine.num_steps - steps,
        output_tokens=sum(each.output for each in requests),
        preemptions=llm.stats().preemptions,
        held=float(np.mean(crowded)) if crowded else float(most),
        most_held=most,
    )
    return run, [request.sequences[0].output_token_ids for request in made]


def real_table(report: dict[str, Any]) -> FigureTable:
    engines = report["engines"]
    rows = [
        (
            name,
            f"{run['held']:.2f}",
            str(run["steps"]),
            f"{run['output_tokens'] / run['steps']:.2f}",
            f"{run['output_tokens'] / run['seconds']:.1f}",
            f"{run['output_tokens'] / run['cpu_seconds']:.1f}",
            str(run["preemptions"]),
        )
        for name, run in engines.items()
    ]
    ratios = report["ratios"]
    rows.append(
        (
            "paged / contiguous",
            f"{ratios['held']:.2f}×",
            f"{1 / ratios['output_tokens_per_step']:.2f}×",
            f"{ratios['output_tokens_per_step']:.2f}×",
            f"{ratios['output_tokens_per_second']:.2f}×",
            f"{ratios['output_tokens_per_cpu_second']:.2f}×",
            "–",
        )
    )
    trace, (same, of) = report["trace"], report["identical_answers"]
    return FigureTable(
        title=(
            f"The engine, {report['job']['model']}: {trace['num_requests']} requests, mean prompt "
            f"{trace['mean_prompt']:.0f}, mean output {trace['mean_output']:.0f}; "
            f"{report['pool_slots']} slots"
        ),
        columns=(
            "allocation",
            "held",
            "steps",
            "tokens/step",
            "tokens/s",
            "per CPU s",
            "preempted",
        ),
        rows=tuple(rows),
        note=(
            f"tokens: output. held: mean over the steps in which others wait. {same} of {of} "
            "answers are the same tokens."
        ),
    )
