"""The engine itself with contiguous reservations and with pages, in the same memory."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.studies.paging.trace import SHAREGPT, Lengths, Mix, Trace, read_trace
from paxkv.bench.figures import FigureTable

ALLOCATIONS = ("contiguous", "paged")
RESERVATIONS = 4
TURN = 12
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
    num_requests: int = 96
    max_model_len: int = 1024
    block_size: int = 16
    max_num_seqs: int = 64
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

    The engines take turns of a few steps, whichever has less of its work done, so that whatever
    else the machine does disturbs both alike.

    engine_arguments: more options for both.
    """
    trace = job.lengths()
    sides = [
        Side(job, trace.requests, allocation, engine_arguments or {}) for allocation in ALLOCATIONS
    ]
    while any(side.engine.has_work for side in sides):
        min((side for side in sides if side.engine.has_work), key=lambda side: side.done).advance()
    contiguous, paged = runs = [side.run() for side in sides]
    same = [a == b for a, b in zip(*(side.answers() for side in sides))]
    return {
        "job": asdict(job),
        "trace": {
            "name": trace.name,
            "num_requests": len(trace.requests),
            "mean_prompt": trace.mean_prompt,
            "mean_output": trace.mean_output,
        },
        "pool_slots": RESERVATIONS * job.max_model_len,
        "engines": {name: asdict(run) for name, run in zip(ALLOCATIONS, runs)},
        "ratios": {
            "held": paged.held / contiguous.held,
            "output_tokens_per_step": contiguous.steps / paged.steps,
            "output_tokens_per_second": contiguous.seconds / paged.seconds,
            "output_tokens_per_cpu_second": contiguous.cpu_seconds / paged.cpu_seconds,
        },
        "identical_answers": [sum(same), len(same)],
    }


class Side:
    """One engine and its requests, which are all there before the first step."""

    def __init__(
        self,
        job: RealJob,
        requests: tuple[Lengths, ...],
        allocation: str,
        engine_arguments: dict[str, Any],
    ) -> None:
        from paxkv.engine.input_processor import InputProcessor
        from paxkv.llm import LLM
        from paxkv.sampling.sampling_params import SamplingParams

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
        self.engine = llm.engine
        vocab_size = llm.model_config.vocab_size
        random = np.random.default_rng(job.seed)
        prompts = [random.integers(0, vocab_size, each.prompt).tolist() for each in requests]
        params = [
            SamplingParams(temperature=0, max_tokens=each.output, ignore_eos=True, detokenize=False)
            for each in requests
        ]
        input_processor = InputProcessor(self.engine, llm.model_config, None)
        self._requests = input_processor.requests(prompts, params)
        for request in self._requests:
            self.engine.add(request)
        self._output_tokens = sum(each.output for each in requests)
        self._seconds, self._cpu_seconds = 0.0, 0.0
        self._crowded: list[int] = []
        self._most = 0

    @property
    def done(self) -> float:
        """Share of the answers' tokens that is there."""
        return sum(map(len, self.answers())) / self._output_tokens

    def answers(self) -> list[list[int]]:
        return [request.sequences[0].output_token_ids for request in self._requests]

    def advance(self) -> None:
        """A few steps, and the time they take until the device is idle."""
        scheduler = self.engine.scheduler
        start, cpu_start = time.perf_counter(), time.process_time()
        for _ in range(TURN):
            if self.engine.has_work:
                self.engine.step()
                self._most = max(self._most, len(scheduler.running))
                if scheduler.waiting:
                    self._crowded.append(len(scheduler.running))
        self.engine.runner.wait()
        self._seconds += time.perf_counter() - start
        self._cpu_seconds += time.process_time() - cpu_start

    def run(self) -> RealRun:
        return RealRun(
            seconds=self._seconds,
            cpu_seconds=self._cpu_seconds,
            steps=self.engine.num_steps,
            output_tokens=self._output_tokens,
            preemptions=self.engine.stats().preemptions,
            held=float(np.mean(self._crowded or [self._most])),
            most_held=self._most,
        )


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
