"""Measurements of one engine on one workload, and values derived from them."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

STREAMS = 5


@dataclass(frozen=True)
class SingleStream:
    """One request alone on the engine.

    Attributes:
        time_to_first_token: seconds from submission to the first token.
        time_per_output_token: mean seconds between the tokens after it; None for one token.
    """

    time_to_first_token: float
    time_per_output_token: float | None

    @classmethod
    def from_arrivals(cls, start: float, arrivals: list[float]) -> SingleStream:
        """Derive both figures from the clock at submission and at each token, in seconds."""
        gaps = len(arrivals) - 1
        return cls(
            time_to_first_token=arrivals[0] - start,
            time_per_output_token=(arrivals[-1] - arrivals[0]) / gaps if gaps else None,
        )

    @classmethod
    def median_of(cls, measure: Callable[[], SingleStream]) -> SingleStream:
        """Measure it `STREAMS` times; the medians of both figures."""
        streams = [measure() for _ in range(STREAMS)]
        per_token = [s.time_per_output_token for s in streams if s.time_per_output_token]
        return cls(
            time_to_first_token=median(s.time_to_first_token for s in streams),
            time_per_output_token=median(per_token) if per_token else None,
        )


@dataclass(frozen=True)
class Measurement:
    """Measurements of one engine; its throughput is that of the median run.

    Attributes:
        engine: name of the engine.
        elapsed: seconds for the whole workload, one entry a run, compilation excluded.
        outputs: token ids of the last run, `[request][sequence][token]`.
        num_prompt_tokens: prompt tokens of one run.
        peak_rss_bytes: largest resident set of the engine's process.
        startup_seconds: from process start to a loaded, compiled engine.
        compile_seconds: part of the start-up spent compiling; None where there is no such part.
        host_seconds_per_step: host work a step (schedule, plan, commit); None where unknown.
        single_stream: the workload's first request alone, medians of `STREAMS` times; None where
            not measured.
        details: settings and counters of the engine, to be kept with the figures.
    """

    engine: str
    elapsed: list[float]
    outputs: list[list[list[int]]]
    num_prompt_tokens: int
    peak_rss_bytes: int
    startup_seconds: float
    compile_seconds: float | None = None
    host_seconds_per_step: float | None = None
    single_stream: SingleStream | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def num_output_tokens(self) -> int:
        return sum(len(tokens) for sequences in self.outputs for tokens in sequences)

    @property
    def requests_per_second(self) -> float:
        return len(self.outputs) / median(self.elapsed)

    @property
    def output_tokens_per_second(self) -> float:
        return self.num_output_tokens / median(self.elapsed)

    @property
    def total_tokens_per_second(self) -> float:
        return (self.num_prompt_tokens + self.num_output_tokens) / median(self.elapsed)

    def to_json(self) -> dict[str, Any]:
        """All fields, outputs included, such that `from_json` restores the measurement."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Measurement:
        stream = fields.pop("single_stream")
        return cls(single_stream=SingleStream(**stream) if stream else None, **fields)

    def summary(self) -> dict[str, Any]:
        """All figures for people and scripts, without the token ids."""
        fields = self.to_json()
        del fields["outputs"], fields["engine"]
        return {
            "requests_per_second": self.requests_per_second,
            "output_tokens_per_second": self.output_tokens_per_second,
            "total_tokens_per_second": self.total_tokens_per_second,
            "num_requests": len(self.outputs),
            "num_output_tokens": self.num_output_tokens,
            **fields,
        }


def peak_rss_bytes() -> int:
    """Largest resident set size this process has had, in bytes."""
    # getrusage's figure survives exec, so in a child it may be its parent's; VmHWM does not.
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
