"""Bug bank, recompilation: what compiles when, and the persistent cache between processes."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import pytest

import paxkv
from paxkv.engine.runner.buckets import Buckets
from paxkv.engine.runner.compiler import use_persistent_cache
from paxkv.engine.scheduler.queues import Preemption
from paxkv.sampling.sampling_params import SamplingParams
from tests.convert import tiny_models
from tests.engine.tiny import Tiny, greedy, ids

MOST_WARM = 0.6  # of the seconds of a start that compiles
COMPILED = "/jax/core/compile/backend_compile_duration"


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Everything XLA compiles meanwhile, inside our programs or beside them."""
    seen: list[str] = []

    def note(event: str, seconds: float, **kwargs: Any) -> None:
        if event == COMPILED:
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


def test_the_listener_hears_a_compilation() -> None:
    with compilations() as seen:
        jax.jit(lambda x: x * 3 - 7)(1.0)
    assert seen


def test_rc_01_the_largest_bucket_is_the_limit_and_buckets_are_few() -> None:
    for most_seqs in range(1, 300):
        for most_tokens in (most_seqs, most_seqs + 1, 331, 512, 2048, 8191, 10**9):
            if most_tokens < most_seqs:
                continue
            found = Buckets.choose(most_seqs, most_tokens)
            limits = {"decode": most_seqs, "mixed": most_tokens, "sample": most_seqs}
            for kind, limit in limits.items():
                sizes = getattr(found, kind)
                assert sizes[-1] == limit
                assert list(sizes) == sorted(set(sizes))
            assert len(found.decode) + len(found.mixed) <= 12
            assert len(found.sample) <= 8
            assert found.mixed[0] <= 256, "a short prompt must not pay for a long one"


def test_rc_01_no_legal_request_compiles_anything() -> None:
    """Odd limits; every prompt length around them; every kind of request."""
    limit = 21
    tiny = Tiny(
        max_num_batched_tokens=limit,
        max_num_seqs=2,
        max_model_len=128,
        num_gpu_blocks_override=32,
        num_cpu_blocks_override=40,
        preemption_mode="swap",
        enforce_eager=False,
    )
    names = tiny.engine.stats().compiled_programs
    assert len([name for name in names if name.startswith("sample")]) <= 8
    shapes = {name.split()[1] for name in names if name.startswith("forward")}
    assert len(shapes) <= 12
    assert f"mixed[{limit}]" in shapes
    assert "decode[2]" in shapes
    with compilations() as seen:
        for length in (1, 2, 3, 4, 5, limit - 1, limit, limit + 1, 100, 127):
            tiny.tokens(ids(length), greedy(3))
        for count in (1, 2, 3, 7):
            tiny.generate([ids(40 + k, salt=k) for k in range(count)], greedy(30))
        swapped = tiny.engine.stats().preemptions_swapped
        tiny.engine.scheduler.queues.preemption = Preemption("recompute")
        tiny.generate([ids(40 + k, salt=k) for k in range(4)], greedy(30))
        tiny.generate([ids(20)], SamplingParams(n=2, seed=1, top_k=5, top_p=0.9, min_p=0.01))
        tiny.generate([ids(20)], SamplingParams(n=2, seed=1, top_n_sigma=1.5))
        tiny.generate([ids(70)], greedy(3, logprobs=5, prompt_logprobs=5))
        tiny.generate(
            [ids(20)] * 3,
            greedy(9, repetition_penalty=1.2, logit_bias={5: 1}, allowed_token_ids=[5, 6, 7]),
        )
        request = tiny.add(ids(50), greedy(30, n=2, presence_penalty=1))
        for _ in range(4):
            tiny.engine.step()
        tiny.engine.abort(request.request_id)
        tiny.run()
    stats = tiny.engine.stats()
    assert 0 < swapped == stats.preemptions_swapped < stats.preemptions
    assert not seen
    assert tiny.engine.stats().compiled_programs == names


START = """
import json, sys, time
import jax
misses, hits = [], []
jax.monitoring.register_event_listener(
    lambda event, **kw: (
        misses.append(event) if event.endswith("/cache_misses") else
        hits.append(event) if event.endswith("/cache_hits") else None
    )
)
if "early" in sys.argv:
    jax.numpy.arange(7).block_until_ready()
    misses.clear()
from paxkv import LLM, SamplingParams
begun = time.process_time()
llm = LLM(
    sys.argv[1], skip_tokenizer_init=True, compilation_cache_dir=sys.argv[2], max_num_seqs=1,
    max_num_batched_tokens=16, num_gpu_blocks_override=15, deterministic=True,
)
out = llm.generate([[5, 6, 7]], SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)
seconds = time.process_time() - begun
print(json.dumps([out[0].outputs[0].token_ids, len(misses), len(hits), seconds]))
"""


def start(model: Path, cache: Path, *flags: str) -> tuple[list[int], int, int, float]:
    """Tokens, cache misses and hits of a new process, and its CPU seconds to the answer."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    environment["PYTHONPATH"] = str(Path(paxkv.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", START, str(model), str(cache), *flags],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout.splitlines()[-1]))


def test_rc_03_a_second_start_compiles_nothing_and_a_damaged_cache_does_no_harm(
    tmp_path: Path,
) -> None:
    model = tiny_models.write_hf(tmp_path / "model", tiny_models.tensors())
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "deadbeef-cache").touch()
    tokens, misses, _, cold = start(model, cache)
    assert misses > 0
    assert len(list(cache.rglob("*"))) > 1, "a file that is nobody's must not stop all writes"
    again, misses, hits, warm = start(model, cache, "early")
    assert again == tokens
    assert misses == 0
    assert hits > 0, "an array made before must not switch the cache off"
    assert warm < MOST_WARM * cold
    for entry in cache.rglob("*"):
        if entry.is_file():
            os.truncate(entry, min(10, entry.stat().st_size))
    damaged, *_ = start(model, cache)
    assert damaged == tokens


def test_rc_03_a_folder_that_cannot_be_used_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    before = jax.config.jax_compilation_cache_dir
    with caplog.at_level(logging.WARNING):
        use_persistent_cache(tmp_path / "file" / "cache")
    assert "compilation_cache_dir" in caplog.text
    assert jax.config.jax_compilation_cache_dir == before
