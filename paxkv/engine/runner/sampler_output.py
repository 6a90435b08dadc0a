"""SamplerOutput: sampled tokens on the device, and a clock of the host's waiting."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from paxkv.engine.sequence import Sequence
from paxkv.sampling.sampler import SampleResult


class DeviceClock:
    """Counts the seconds that the host spends inside `with`: launching, or waiting."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._start = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds += time.perf_counter() - self._start


@dataclass(frozen=True)
class SamplerOutput:
    """Results of `sample` for `sequences`, on the device; reading them waits for it."""

    sequences: list[Sequence]
    sampled: SampleResult | None
    clock: DeviceClock

    def tokens(self) -> list[int]:
        if self.sampled is None:
            return []
        with self.clock:
            return np.asarray(self.sampled.tokens).tolist()

    def bad(self) -> list[bool]:
        if self.sampled is None:
            return []
        with self.clock:
            return np.asarray(self.sampled.bad).tolist()

    def candidates(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids and log-probabilities `[rows, k]`, if there are beams among the rows."""
        assert self.sampled is not None
        found = self.sampled.candidates
        with self.clock:
            return np.asarray(found.ids), np.asarray(found.logprobs)
