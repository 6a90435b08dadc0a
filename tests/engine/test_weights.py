"""Weights that come while programs are compiled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from paxkv.engine.build import build_engine
from paxkv.engine.config import EngineConfig
from paxkv.models.weight_store import Weights
from paxkv.models.weights import abstract_params
from tests.engine.tiny import CONFIG, params

SHAPES = abstract_params(CONFIG, "float32")


def no_progress(done: int, total: int) -> None:
    pass


def failed(weights: Weights) -> bool:
    try:
        weights.check()
    except OSError:
        return True
    return False


def options(**given: Any) -> EngineConfig:
    return EngineConfig(max_model_len=32, max_num_seqs=2, num_gpu_blocks_override=8, **given)


def test_programs_are_compiled_while_weights_are_read() -> None:
    compiled = threading.Event()

    def load(progress: Callable[[int, int], None]) -> Any:
        assert compiled.wait(120), "the engine waited for the weights first"
        return params()

    def note(done: int, total: int) -> None:
        if done == total:
            compiled.set()

    with Weights.reading(SHAPES, load, no_progress) as weights:
        engine = build_engine(weights, CONFIG, options(max_num_batched_tokens=8), note)
    assert engine.runner.compiler.names


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_weights_that_cannot_be_read_end_the_start(enforce_eager: bool) -> None:
    def load(progress: Callable[[int, int], None]) -> Any:
        raise OSError("the file ends too early")

    compiled: list[int] = []
    with Weights.reading(SHAPES, load, no_progress) as weights:
        while not failed(weights):
            time.sleep(0.01)
        with pytest.raises(OSError, match="ends too early"):
            build_engine(
                weights,
                CONFIG,
                options(enforce_eager=enforce_eager),
                lambda done, total: compiled.append(done),
            )
    assert not compiled


def test_a_start_that_fails_reads_no_further() -> None:
    reached = threading.Event()
    tensors: list[int] = []

    def load(progress: Callable[[int, int], None]) -> Any:
        for done in range(10_000):
            tensors.append(done)
            progress(done, 10_000)
            reached.set()
            time.sleep(0.01)
        return params()

    def start() -> None:
        with Weights.reading(SHAPES, load, no_progress):
            assert reached.wait(60)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start()
    assert len(tensors) < 10_000
