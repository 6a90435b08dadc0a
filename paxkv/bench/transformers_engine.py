"""transformers on a workload: `generate` in static batches, and its continuous batching."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from paxkv.bench.measurement import Measurement, SingleStream, peak_rss_bytes
from paxkv.bench.transformers_model import build_transformers_model, require_torch
from paxkv.bench.workload import Workload, WorkloadRequest

if TYPE_CHECKING:
    from convert import Checkpoint

Outputs = list[list[list[int]]]

# Of continuous batching. Left to itself it takes 60 % of the machine's memory for pages; it gets
# what the whole workload needs at once, so that nothing waits for a page.
PAGE_SIZE = 256
MAX_BATCH_TOKENS = 2048


def measure_generate(
    checkpoint: Checkpoint, workload: Workload, runs: int, batch_size: int, started: float
) -> Measurement:
    """Time `model.generate` on left-padded batches of at most `batch_size` sequences.

    A batch runs to its longest `max_tokens`; of each row only the request's own tokens count.
    """
    model = _load(checkpoint)
    _generate_batch(model, workload.requests[:1], max_tokens=2)
    startup = time.perf_counter() - started
    batches = list(static_batches(workload, batch_size))
    elapsed: list[float] = []
    outputs: Outputs = []
    for _ in range(runs):
        start = time.perf_counter()
        outputs = [rows for batch in batches for rows in _generate_batch(model, batch)]
        elapsed.append(time.perf_counter() - start)
    return Measurement(
        engine="hf_generate",
        elapsed=elapsed,
        outputs=outputs,
        num_prompt_tokens=workload.num_prompt_tokens,
        single_stream=SingleStream.median_of(partial(_single_stream, model, workload.requests[0])),
        peak_rss_bytes=peak_rss_bytes(),
        startup_seconds=startup,
        details={"batches": len(batches), "batch_size": batch_size, **_versions()},
    )


def measure_continuous(
    checkpoint: Checkpoint, workload: Workload, runs: int, started: float
) -> Measurement:
    """Time transformers' continuous batching with every request submitted at once.

    Raises:
        ValueError: the requests do not share one temperature and one `n`, which it needs.
    """
    model = _load(checkpoint)
    startup = time.perf_counter() - started
    elapsed: list[float] = []
    outputs: Outputs = []
    for _ in range(runs):
        seconds, outputs = _continuous_run(model, workload)
        elapsed.append(seconds)
    return Measurement(
        engine="hf_continuous",
        elapsed=elapsed,
        outputs=outputs,
        num_prompt_tokens=workload.num_prompt_tokens,
        peak_rss_bytes=peak_rss_bytes(),
        startup_seconds=startup,
        details=_versions(),
    )


def static_batches(workload: Workload, batch_size: int) -> Iterator[list[WorkloadRequest]]:
    """Split a workload, in its order, into batches of at most `batch_size` sequences.

    `generate` samples a whole batch one way, so a batch also ends where that changes.
    """
    batch: list[WorkloadRequest] = []
    for request in workload.requests:
        if batch and (
            _settings(request) != _settings(batch[0])
            or sum(member.n for member in batch) + request.n > batch_size
        ):
            yield batch
            batch = []
        batch.append(request)
    yield batch


def _settings(request: WorkloadRequest) -> tuple[float, int, bool]:
    return request.temperature, request.n, request.ignore_eos


def _load(checkpoint: Checkpoint) -> Any:
    torch = require_torch()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    return build_transformers_model(checkpoint)


def _versions() -> dict[str, Any]:
    import torch
    import transformers

    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
    }


def _generation_config(model: Any, request: WorkloadRequest, max_tokens: int) -> Any:
    from transformers import GenerationConfig

    sampled = request.temperature > 0
    return GenerationConfig(
        max_new_tokens=max_tokens,
        do_sample=sampled,
        num_return_sequences=request.n,
        eos_token_id=None if request.ignore_eos else model.config.eos_token_id,
        pad_token_id=0,
        **({"temperature": request.temperature, "top_k": 0, "top_p": 1.0} if sampled else {}),
    )


def _generate_batch(
    model: Any,
    batch: list[WorkloadRequest] | tuple[WorkloadRequest, ...],
    max_tokens: int | None = None,
    streamer: Any = None,
) -> Outputs:
    """Token ids `[request][sequence][token]`, each cut to its own length."""
    import torch

    width = max(len(request.prompt_token_ids) for request in batch)
    ids = torch.zeros((len(batch), width), dtype=torch.long)
    mask = torch.zeros((len(batch), width), dtype=torch.long)
    for row, request in enumerate(batch):
        start = width - len(request.prompt_token_ids)
        ids[row, start:] = torch.tensor(request.prompt_token_ids)
        mask[row, start:] = 1
    longest = max_tokens or max(request.max_tokens for request in batch)
    if batch[0].seed is not None:
        torch.manual_seed(batch[0].seed)
    config = _generation_config(model, batch[0], longest)
    with torch.inference_mode():
        generated = model.generate(
            input_ids=ids, attention_mask=mask, generation_config=config, streamer=streamer
        )
    rows = iter(generated[:, width:].tolist())
    return [
        [_own_tokens(model, request, next(rows)) for _ in range(request.n)] for request in batch
    ]


def _own_tokens(model: Any, request: WorkloadRequest, tokens: list[int]) -> list[int]:
    """The tokens this request asked for: cut at its `max_tokens`, and after end-of-sequence."""
    tokens = tokens[: request.max_tokens]
    if request.ignore_eos:
        return tokens
    stops = set(model.config.eos_token_id or ())
    end = next((index for index, token in enumerate(tokens) if token in stops), len(tokens))
    return tokens[: end + 1]


class _ArrivalClock:
    """A streamer for `generate` which notes when each token arrives."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        self._prompt_seen = False

    def put(self, _value: Any) -> None:
        if self._prompt_seen:
            self.arrivals.append(time.perf_counter())
        self._prompt_seen = True

    def end(self) -> None:
        pass


def _single_stream(model: Any, request: WorkloadRequest) -> SingleStream:
    alone = WorkloadRequest(
        prompt_token_ids=request.prompt_token_ids,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        ignore_eos=True,
    )
    clock = _ArrivalClock()
    start = time.perf_counter()
    _generate_batch(model, [alone], streamer=clock)
    return SingleStream.from_arrivals(start, clock.arrivals)


def _continuous_run(model: Any, workload: Workload) -> tuple[float, Outputs]:
    """Seconds and outputs of one run; making the manager and its cache is outside the clock."""
    import torch
    from transformers import ContinuousBatchingConfig

    requests = workload.requests
    first = requests[0]
    if any((r.temperature, r.n) != (first.temperature, first.n) for r in requests):
        raise ValueError("continuous batching needs one temperature and one n for all requests")
    if first.seed is not None:
        torch.manual_seed(first.seed)
    with model.continuous_batching_context_manager(
        generation_config=_generation_config(model, first, max(r.max_tokens for r in requests)),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=PAGE_SIZE,
            num_blocks=_pages_needed(requests),
            max_batch_tokens=MAX_BATCH_TOKENS,
            max_requests_per_batch=workload.num_sequences,
        ),
        block=True,
        timeout=5,
    ) as manager:
        # The manager's thread makes the cache on its own; an answer says that it is there.
        primer = WorkloadRequest((0, 0), max_tokens=4, n=first.n, ignore_eos=True)
        _submit_and_wait(manager, model, {"primer": primer})
        start = time.perf_counter()
        named = {str(index): request for index, request in enumerate(requests)}
        finished = _submit_and_wait(manager, model, named)
        seconds = time.perf_counter() - start
    return seconds, [
        [finished[each] for each in _sequence_names(name, request.n)]
        for name, request in named.items()
    ]


def _pages_needed(requests: tuple[WorkloadRequest, ...]) -> int:
    """Pages for every sequence at once, none shared, and a tenth to spare."""
    pages = sum(r.n * -(-(len(r.prompt_token_ids) + r.max_tokens) // PAGE_SIZE) for r in requests)
    return pages + pages // 10 + 2


def _sequence_names(name: str, n: int) -> list[str]:
    """How transformers names a request's own sequence and the ones forked from it."""
    return [name, *(f"{name}__child#{child}" for child in range(n - 1))]


def _submit_and_wait(
    manager: Any, model: Any, requests: dict[str, WorkloadRequest]
) -> dict[str, list[int]]:
    for name, request in requests.items():
        manager.add_request(
            input_ids=list(request.prompt_token_ids),
            request_id=name,
            max_new_tokens=request.max_tokens,
            eos_token_id=-1 if request.ignore_eos else model.config.eos_token_id,
        )
    finished: dict[str, list[int]] = {}
    while len(finished) < sum(request.n for request in requests.values()):
        result = manager.get_result(timeout=1)
        if result is None:
            if not manager.is_running():
                raise RuntimeError("transformers' continuous batching ended before its requests")
        elif result.is_finished():
            if result.error is not None:
                raise RuntimeError(f"transformers' continuous batching: {result.error}")
            finished[result.request_id] = list(result.generated_tokens)
    return finished
