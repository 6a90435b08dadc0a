"""paxkv itself on a workload."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from paxkv.bench.measurement import Measurement, SingleStream, peak_rss_bytes
from paxkv.bench.workload import Workload, WorkloadRequest
from paxkv.engine.stats import EngineStats
from paxkv.llm import LLM
from paxkv.sampling.sampling_params import SamplingParams


def measure_paxkv(
    model: str, workload: Workload, runs: int, engine_arguments: dict[str, Any], started: float
) -> Measurement:
    """Time `LLM.generate` on token ids, as the peers are timed: no tokenizer on either side.

    Every run starts with an empty prefix cache. Programs are compiled when the engine starts,
    which is part of the start-up, not of a run.
    """
    llm = LLM(model, skip_tokenizer_init=True, **engine_arguments)
    startup = time.perf_counter() - started
    prompts = [{"prompt_token_ids": list(r.prompt_token_ids)} for r in workload.requests]
    params = [sampling_params(request) for request in workload.requests]
    elapsed: list[float] = []
    outputs: list[list[list[int]]] = []
    for _ in range(runs):
        llm.reset_prefix_cache()
        start = time.perf_counter()
        finished = llm.generate(prompts, params, use_tqdm=False)
        elapsed.append(time.perf_counter() - start)
        outputs = [[list(each.token_ids) for each in output.outputs] for output in finished]
    stats = llm.stats()
    return Measurement(
        engine="paxkv",
        elapsed=elapsed,
        outputs=outputs,
        num_prompt_tokens=workload.num_prompt_tokens,
        single_stream=SingleStream.median_of(partial(_single_stream, llm, workload.requests[0])),
        peak_rss_bytes=peak_rss_bytes(),
        startup_seconds=startup,
        compile_seconds=stats.compile_seconds,
        host_seconds_per_step=stats.host_seconds_per_step,
        details=_details(stats),
    )


def sampling_params(request: WorkloadRequest) -> SamplingParams:
    """What the workload's line asks for, without text."""
    return SamplingParams(
        n=request.n,
        temperature=request.temperature,
        max_tokens=request.max_tokens,
        seed=request.seed,
        ignore_eos=request.ignore_eos,
        detokenize=False,
    )


def _single_stream(llm: LLM, request: WorkloadRequest) -> SingleStream:
    llm.reset_prefix_cache()
    params = SamplingParams(
        temperature=request.temperature,
        max_tokens=request.max_tokens,
        ignore_eos=True,
        detokenize=False,
    )
    start = time.perf_counter()
    arrivals = [
        time.perf_counter()
        for _ in llm.stream({"prompt_token_ids": list(request.prompt_token_ids)}, params)
    ]
    return SingleStream.from_arrivals(start, arrivals)


def _details(stats: EngineStats) -> dict[str, Any]:
    import jax

    return {
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "compiled_programs": len(stats.compiled_programs),
        "num_steps": stats.num_steps,
        "preemptions": stats.preemptions,
        "prefix_cache_hits": stats.prefix_cache_hits,
        "num_blocks": stats.num_blocks,
    }
